"""Hillis and Steele's scan: log2(length) shifted additions."""

import torch
from torch import nn

REFERENCE = "level1/cumsum"


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        out = x.movedim(self.dim, -1)
        step = 1
        while step < out.shape[-1]:
            out = torch.cat([out[..., :step], out[..., step:] + out[..., :-step]], dim=-1)
            step *= 2
        return out.movedim(-1, self.dim)
