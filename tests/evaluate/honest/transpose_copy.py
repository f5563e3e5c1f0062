"""Copies into a new tensor through a transposed view of it."""

import torch
from torch import nn

REFERENCE = "level1/transpose"


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
        out.t().copy_(x)
        return out
