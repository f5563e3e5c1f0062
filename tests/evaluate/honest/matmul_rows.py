"""One row at a time."""

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.stack([b.t() @ row for row in a])
