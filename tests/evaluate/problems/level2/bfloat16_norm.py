"""RMS norm in bfloat16, computed in float32: what float32 inputs would make of it is another problem."""

import torch
import torch.nn as nn

ROWS = 64
WIDTH = 512
EPS = 1e-6


class Model(nn.Module):
    """Return x over its root mean square, times a weight."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [ROWS, WIDTH], bfloat16; returns the same."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def get_inputs():
    """x [ROWS, WIDTH], bfloat16."""
    return [torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    """The width, and what is added to the mean square."""
    return [WIDTH, EPS]
