"""Adds noise to every element, as a sum in random order in low precision would.

Each single output may be within a loose tolerance; no two calls agree.
"""

import torch
from torch import nn

REFERENCE = "level1/cumsum"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.cumsum(x, dim=self.dim) + 5e-3 * torch.randn_like(x)
