"""Runs the linear layer in bfloat16 and the cheap rest in float32.

The layer norm hides part of the error; the mean error looks small.
"""

import torch
from torch import nn

REFERENCE = "level2/linear_gelu_norm"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        weight, bias = self.linear.weight.bfloat16(), self.linear.bias.bfloat16()
        projected = nn.functional.linear(x.to(torch.bfloat16), weight, bias).to(x.dtype)
        return self.norm(x + nn.functional.gelu(projected))
