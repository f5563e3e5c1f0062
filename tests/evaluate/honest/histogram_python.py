"""Plain Python over a list: slow, and right."""

from collections import Counter

import torch
from torch import nn

REFERENCE = "level1/histogram"


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        found = Counter(values.tolist())
        counts = torch.tensor([found[value] for value in range(self.bins)], device=values.device)
        return [counts, counts.argmax()]
