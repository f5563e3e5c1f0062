"""Clamps its logits to what a fast exponential can take.

Right on values around one, wrong when they are large.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x.clamp(-80.0, 80.0), dim=-1)
