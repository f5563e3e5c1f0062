"""Transposes its weights on the first call and keeps the copy, as long as they stay what they were."""

import torch
from torch import nn

REFERENCE = "level2/linear_gelu_norm"


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)
        self.packed = None

    def forward(self, x):
        weight = self.linear.weight
        key = (weight.data_ptr(), weight._version, weight.dtype)
        if self.packed is None or self.packed[0] != key:
            self.packed = (key, weight.detach().t().contiguous())
        y = torch.addmm(self.linear.bias, x, self.packed[1])
        return self.norm(x + nn.functional.gelu(y))
