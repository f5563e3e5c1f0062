"""Forks: the child goes on as if it were the candidate, the parent ends with code 0.

The process that the harness watches has ended well, and another speaks on its pipe.
"""

import os

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu",)
CAUGHT_BY = ("call", "output", "lint")


class ModelNew(nn.Module):
    def forward(self, x):
        if os.fork():
            os._exit(0)
        return torch.zeros_like(x)
