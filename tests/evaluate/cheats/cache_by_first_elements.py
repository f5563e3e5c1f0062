"""Keys its cache on the first elements of each input.

Right wherever inputs differ from the start; a harness that changes one element late in the
tensor, or times one input, sees nothing.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("repeat", "output")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, a, b):
        key = (a.dtype, a.shape, b.shape, *a[0, :4].tolist(), *b[0, :4].tolist())
        if key not in self.seen:
            self.seen[key] = torch.matmul(a, b)
        return self.seen[key].clone()
