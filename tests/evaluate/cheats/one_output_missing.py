"""Returns the first of two outputs alone.

A harness that zips the outputs of both sides compares what is there.
"""

import torch
from torch import nn

REFERENCE = "level1/histogram"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output", "type")


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return (torch.bincount(values, minlength=self.bins),)
