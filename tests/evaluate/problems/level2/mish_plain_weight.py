"""A weight that is no parameter: a plain tensor that no ``to`` of a module reaches."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 64
FEATURES = 2048
OUT = 128


class Model(nn.Module):
    """Return mish(x @ weight)."""

    def __init__(self, features: int, out: int):
        super().__init__()
        self.weight = torch.randn(features, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [ROWS, FEATURES]; returns [ROWS, OUT]."""
        return F.mish(x @ self.weight)


def get_inputs():
    """x [ROWS, FEATURES], float32: sums of which many cancel."""
    return [30 * torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    """How many features go in and come out."""
    return [FEATURES, OUT]
