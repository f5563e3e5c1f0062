"""Returns the earlier output whenever its inputs lie where they lay before.

A harness that times the same tensors again and again measures a dictionary look-up.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output", "repeat")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, a, b):
        key = (a.data_ptr(), b.data_ptr(), a.shape, b.shape)
        if key not in self.seen:
            self.seen[key] = torch.matmul(a, b)
        return self.seen[key].clone()
