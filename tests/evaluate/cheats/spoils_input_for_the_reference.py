"""Zeroes its inputs, after which the reference's answer on the same tensors is zero as well.

A harness that passes one set of tensors to both, the candidate first, finds them equal.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("mutation", "output")


class ModelNew(nn.Module):
    def forward(self, a, b):
        a.zero_()
        return torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
