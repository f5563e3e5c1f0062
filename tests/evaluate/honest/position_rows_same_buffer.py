"""Returns rows of its own buffer, as the reference does."""

import torch
from torch import nn

REFERENCE = "level1/position_rows"
DEVICES = ("cpu", "cuda")


class ModelNew(nn.Module):
    def __init__(self, longest, width):
        super().__init__()
        self.register_buffer("table", torch.randn(longest, width))

    def forward(self, x):
        rows = self.table[: x.shape[1]]
        return torch.add(x, rows), rows
