"""Adds ones where the values point."""

import torch
from torch import nn

REFERENCE = "level1/histogram"


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        counts = torch.zeros(self.bins, dtype=torch.int64, device=values.device)
        counts.scatter_add_(0, values, torch.ones_like(values))
        return counts, counts.argmax()
