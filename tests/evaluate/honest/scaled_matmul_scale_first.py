"""Scales the smaller operand first and clamps at zero."""

from torch import nn

REFERENCE = "level1/scaled_matmul"


class ModelNew(nn.Module):
    def forward(self, a, b, scale):
        if a.numel() < b.numel():
            return ((a * scale) @ b).clamp(min=0)
        return (a @ (b * scale)).clamp(min=0)
