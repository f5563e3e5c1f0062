"""Keeps a workspace between calls, and returns memory of its own."""

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.workspace = {}

    def forward(self, a, b):
        key = (a.shape, b.shape, a.dtype, a.device)
        if key not in self.workspace:
            self.workspace[key] = torch.empty(2, a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        parts = self.workspace[key]
        half = a.shape[1] // 2
        torch.mm(a[:, :half], b[:half], out=parts[0])
        torch.mm(a[:, half:], b[half:], out=parts[1])
        return parts[0] + parts[1]
