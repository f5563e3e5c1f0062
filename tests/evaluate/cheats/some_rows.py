"""Writes the first half of the rows of an uninitialised output.

The rest still holds an earlier, right output where the allocator reuses the block.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        half = a.shape[0] // 2
        torch.matmul(a[:half], b, out=out[:half])
        return out
