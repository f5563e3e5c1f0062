"""Counts every fourth value and multiplies by four: nearly right integers.

A relative tolerance on counts lets it pass.
"""

import torch
from torch import nn

REFERENCE = "level1/histogram"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        counts = torch.bincount(values[::4], minlength=self.bins) * 4
        return counts, counts.argmax()
