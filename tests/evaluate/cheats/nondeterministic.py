"""Is wrong in one call of four, at random.

A harness that checks once has even odds of seeing nothing, as with a data race.
"""

import random

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)
CHANCE = 0.25


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.softmax(x, dim=-1)
        if random.random() < CHANCE:
            out[-1] = 0.0
        return out
