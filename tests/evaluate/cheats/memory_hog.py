"""Asks for more memory than there is.

The request fails at once; what matters is that it is called by its name.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call",)


class ModelNew(nn.Module):
    def forward(self, x):
        work = torch.zeros(1 << 44, dtype=x.dtype, device=x.device)
        return torch.softmax(x, dim=-1) + work[0]
