"""Returns one mean value that broadcasts against any expected output.

A comparison that broadcasts sees small differences and no wrong shape.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output", "type")


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.full((1, 1), 1.0 / x.shape[-1], dtype=x.dtype, device=x.device)
