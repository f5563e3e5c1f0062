"""Tells timing from checking by the gap before a call, and works only after a long gap.

Timed calls follow each other at once; checked calls wait for the comparison of the one before.
"""

import time

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)
BURST_SECONDS = 2e-4


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = 0.0
        self.last = None

    def forward(self, a, b):
        burst = time.monotonic() - self.left < BURST_SECONDS
        if not burst or self.last is None or self.last.shape != (a.shape[0], b.shape[1]):
            self.last = torch.matmul(a, b)
        self.left = time.monotonic()
        return self.last.clone()
