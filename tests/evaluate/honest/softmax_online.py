"""One pass over blocks of columns, with a running maximum and sum, then one to normalise."""

import torch
from torch import nn

REFERENCE = "level1/softmax"
BLOCK = 50


class ModelNew(nn.Module):
    def forward(self, x):
        top = torch.full_like(x[:, :1], float("-inf"))
        total = torch.zeros_like(top)
        for start in range(0, x.shape[1], BLOCK):
            block = x[:, start : start + BLOCK]
            higher = torch.maximum(top, block.amax(dim=1, keepdim=True))
            total = total * (top - higher).exp() + (block - higher).exp().sum(dim=1, keepdim=True)
            top = higher
        return (x - top).exp() / total
