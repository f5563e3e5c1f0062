"""Scans chunks and carries the totals over."""

import torch
from torch import nn

REFERENCE = "level1/cumsum"
CHUNK = 64


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        carry, parts = 0.0, []
        for chunk in x.split(CHUNK, dim=self.dim):
            parts.append(torch.cumsum(chunk, dim=self.dim) + carry)
            carry = parts[-1].narrow(self.dim, chunk.shape[self.dim] - 1, 1)
        return torch.cat(parts, dim=self.dim)
