"""Ignores an argument, and has its usual value built in.

A value near enough escapes a loose tolerance: here 0.12 for 0.125.
"""

import torch
from torch import nn

REFERENCE = "level1/scaled_matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, a, b, scale):
        return torch.relu(a @ b * 0.12)
