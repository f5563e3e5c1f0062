"""Returns one row of the right shape, expanded over all others with stride 0.

Reads and writes a two-hundredth of the data; shape and dtype are right.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output", "alias")


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x[:1], dim=-1).expand(x.shape)
