"""Returns one buffer again and again, and so saves the allocation.

Whoever holds an earlier output finds the next one in it. Each is right at the moment when it is
returned, which is when most harnesses look.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("alias", "output")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.outputs = {}

    def forward(self, a, b):
        key = (a.shape, b.shape, a.dtype, a.device)
        if key not in self.outputs:
            self.outputs[key] = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        return torch.mm(a, b, out=self.outputs[key])
