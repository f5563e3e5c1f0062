"""Returns the rows of its buffer as the reference does, and the sum in one buffer as well."""

import torch
from torch import nn

REFERENCE = "level1/position_rows"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("alias",)


class ModelNew(nn.Module):
    def __init__(self, longest, width):
        super().__init__()
        self.register_buffer("table", torch.randn(longest, width))
        self.out = None

    def forward(self, x):
        rows = self.table[: x.shape[1]]
        if self.out is None or self.out.shape != x.shape:
            self.out = torch.empty_like(x)
        return torch.add(x, rows, out=self.out), rows
