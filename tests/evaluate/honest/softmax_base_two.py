"""Exponentials to base two with the factor folded in, as kernels compute them."""

import math

import torch
from torch import nn

REFERENCE = "level1/softmax"


class ModelNew(nn.Module):
    def forward(self, x):
        powers = torch.exp2((x - x.amax(dim=-1, keepdim=True)) * math.log2(math.e))
        return powers / powers.sum(dim=-1, keepdim=True)
