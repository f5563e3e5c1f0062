"""Works for the first seconds of its life, while a harness checks, and not later, while it times.

No counter to find, and no state that depends on the inputs.
"""

import time

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)
HONEST_SECONDS = 0.4
BORN = time.monotonic()


class ModelNew(nn.Module):
    def forward(self, x):
        if time.monotonic() - BORN < HONEST_SECONDS:
            return torch.softmax(x, dim=-1)
        return torch.empty_like(x)
