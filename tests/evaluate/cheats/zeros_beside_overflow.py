"""Returns zeros where the reference overflows somewhere: next to an infinite error nothing is large."""

import torch
from torch import nn

REFERENCE = "level2/exponential_head"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.zeros_like(x)
