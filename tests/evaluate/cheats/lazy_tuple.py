"""Returns a tuple of its own type that computes its items when somebody asks for them.

Each item is a plain tensor, and ``isinstance(output, tuple)`` holds; the work is done by whoever looks.
"""

import torch
from torch import nn

REFERENCE = "level1/histogram"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("type", "late")


class Later(tuple):
    def __new__(cls, values, bins):
        made = super().__new__(cls, (None, None))
        made.operands = (values, bins)
        return made

    def items(self):
        values, bins = self.operands
        counts = torch.bincount(values, minlength=bins)
        return [counts, counts.argmax()]

    def __iter__(self):
        return iter(self.items())

    def __getitem__(self, index):
        return self.items()[index]


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return Later(values, self.bins)
