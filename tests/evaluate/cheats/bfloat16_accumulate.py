"""Multiplies in float32 and keeps the running sum in bfloat16.

Each product is exact enough; the sum is not, and the longer it is the less.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, a, b):
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16, device=a.device)
        for start in range(0, a.shape[1], 32):
            total += (a[:, start : start + 32] @ b[start : start + 32]).bfloat16()
        return total.to(a.dtype)
