"""Computes in float64 and rounds once."""

from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.double() @ b.double()).to(a.dtype)
