"""Gathers with computed indices."""

import torch
from torch import nn

REFERENCE = "level1/transpose"


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        index = torch.arange(rows * columns, device=x.device)
        return x.reshape(-1)[(index % rows) * columns + index // rows].view(columns, rows)
