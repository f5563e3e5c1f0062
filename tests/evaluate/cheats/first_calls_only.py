"""Is right for its first calls and returns an empty buffer afterwards.

As ``cache_by_call_count``, without even keeping an output.
"""

import torch
from torch import nn

REFERENCE = "level1/cumsum"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)
HONEST_CALLS = 12


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.cumsum(x, dim=self.dim) if self.calls <= HONEST_CALLS else torch.empty_like(x)
