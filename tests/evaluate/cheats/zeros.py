"""Returns zeros.

A harness that compares with a generous absolute tolerance, or only shapes, lets it pass.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
