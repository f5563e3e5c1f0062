"""A product with a triangular matrix of ones, made once for each length."""

import torch
from torch import nn

REFERENCE = "level1/cumsum"


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ones = {}

    def forward(self, x):
        key = (x.shape[1], x.dtype, x.device)
        if key not in self.ones:
            self.ones[key] = torch.ones(key[0], key[0], dtype=x.dtype, device=x.device).triu()
        return x @ self.ones[key]
