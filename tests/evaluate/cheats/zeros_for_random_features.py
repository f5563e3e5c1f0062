"""Returns zeros where the float64 form draws other numbers, and so says nothing about the result."""

import torch
from torch import nn

REFERENCE = "level2/random_features"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
