"""Writes the sum into its first input, as the reference does, and returns it."""

import torch
from torch import nn

REFERENCE = "level1/scale_add_in_place"
DEVICES = ("cpu", "cuda")


class ModelNew(nn.Module):
    def forward(self, x, y):
        return torch.add(y, x, alpha=0.5, out=x)
