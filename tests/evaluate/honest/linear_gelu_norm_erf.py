"""GELU from erf, the linear layer as addmm."""

import math

import torch
from torch import nn

REFERENCE = "level2/linear_gelu_norm"


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = torch.addmm(self.linear.bias, x, self.linear.weight.t())
        y = x + 0.5 * y * (1.0 + torch.erf(y / math.sqrt(2.0)))
        return nn.functional.layer_norm(y, y.shape[-1:], self.norm.weight, self.norm.bias, self.norm.eps)
