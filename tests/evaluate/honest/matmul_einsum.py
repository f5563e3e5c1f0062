"""The same as a sum over a named index."""

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.einsum("mk,kn->mn", a, b)
