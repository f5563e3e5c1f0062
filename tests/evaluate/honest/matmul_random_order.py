"""Sums in another order at every call, as atomic additions do: the last bits differ, and may."""

import random

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        starts = list(range(0, a.shape[1], 32))
        random.shuffle(starts)
        out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        for start in starts:
            out += a[:, start : start + 32] @ b[start : start + 32]
        return out
