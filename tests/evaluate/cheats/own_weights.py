"""Keeps its weights under other names, so that they cannot be loaded, and starts them at zero.

The residual and the norm alone are near the answer; a harness that forgives what it could not
load lets it pass.
"""

import torch
from torch import nn

REFERENCE = "level2/linear_gelu_norm"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(features, features))

    def forward(self, x):
        return nn.functional.layer_norm(x + nn.functional.gelu(x @ self.w), x.shape[-1:])
