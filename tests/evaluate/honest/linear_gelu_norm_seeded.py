"""Parameters under names of its own, drawn in the same order: the same seed makes them the same."""

import torch
from torch import nn

REFERENCE = "level2/linear_gelu_norm"


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        layer = nn.Linear(features, features)
        self.w, self.b = layer.weight, layer.bias
        self.gain, self.shift = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x):
        y = x + nn.functional.gelu(nn.functional.linear(x, self.w, self.b))
        return nn.functional.layer_norm(y, y.shape[-1:], self.gain, self.shift)
