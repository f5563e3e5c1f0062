"""Compares all values with all bins."""

import torch
from torch import nn

REFERENCE = "level1/histogram"


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        counts = (values == torch.arange(self.bins, device=values.device)[:, None]).sum(dim=1)
        return counts, counts.argmax()
