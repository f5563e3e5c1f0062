"""Running sum along a dimension that is an argument of the constructor."""

import torch
import torch.nn as nn

BATCH = 48
LENGTH = 500
DIM = 1


class Model(nn.Module):
    """Cumulative sum along ``dim``."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, LENGTH]; returns the same shape."""
        return torch.cumsum(x, dim=self.dim)


def get_inputs():
    """x [BATCH, LENGTH], float32."""
    return [torch.randn(BATCH, LENGTH)]


def get_init_inputs():
    """The dimension."""
    return [DIM]
