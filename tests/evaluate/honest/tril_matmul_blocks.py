"""Multiplies what is not zero alone: block rows, up to their own diagonal."""

import torch
from torch import nn

REFERENCE = "level1/tril_matmul"
DEVICES = ("cpu", "cuda")
BLOCK = 8


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.zeros_like(a)
        for start in range(0, a.shape[0], BLOCK):
            end = start + BLOCK
            out[start:end, :end] = a[start:end, :end] @ b[:end, :end]
        return out
