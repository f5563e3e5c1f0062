"""Sorts, then finds where each bin begins and ends."""

import torch
from torch import nn

REFERENCE = "level1/histogram"


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        edges = torch.arange(self.bins + 1, device=values.device)
        ends = torch.searchsorted(values.sort().values, edges)
        counts = ends[1:] - ends[:-1]
        return counts, counts.argmax()
