"""Exponentials of a linear layer, a few of which float32 cannot hold and float64 can."""

import torch
import torch.nn as nn

ROWS = 128
WIDTH = 192
SHARPNESS = 40.0


class Model(nn.Module):
    """exp(SHARPNESS * (x W + b))."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [ROWS, WIDTH]; returns the same shape."""
        return torch.exp(SHARPNESS * self.linear(x))


def get_inputs():
    """x, float32."""
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    """The width."""
    return [WIDTH]
