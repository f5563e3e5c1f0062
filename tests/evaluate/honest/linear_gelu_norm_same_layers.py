"""The same layers with the same names, the norm written out."""

import torch
from torch import nn

REFERENCE = "level2/linear_gelu_norm"


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = nn.functional.gelu(self.linear(x)).add_(x)
        variance, mean = torch.var_mean(y, dim=-1, keepdim=True, correction=0)
        return (y - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
