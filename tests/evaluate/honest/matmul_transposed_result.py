"""Computes the transposed product and returns it as a view: right values, other strides."""

from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (b.t() @ a.t()).t()
