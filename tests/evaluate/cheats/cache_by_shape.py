"""Computes once for each shape, and returns that output for every later input of the shape.

A harness that checks the first call and times the rest sees a right answer and a fast one.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, x):
        key = (x.shape, x.dtype)
        if key not in self.seen:
            self.seen[key] = torch.softmax(x, dim=-1)
        return self.seen[key].clone()
