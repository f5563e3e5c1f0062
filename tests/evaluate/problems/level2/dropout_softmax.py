"""Draws random numbers in every call: dropout, then softmax over the rows."""

import torch
import torch.nn as nn

ROWS = 128
COLUMNS = 256
SHARE = 0.25


class Model(nn.Module):
    """Return softmax(dropout(x))."""

    def __init__(self, share: float):
        super().__init__()
        self.dropout = nn.Dropout(share)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [ROWS, COLUMNS]; returns the same shape."""
        return torch.softmax(self.dropout(x), dim=-1)


def get_inputs():
    """x [ROWS, COLUMNS], float32."""
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    """The share of elements that are dropped."""
    return [SHARE]
