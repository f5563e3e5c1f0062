"""Adds a table of positions and returns the rows that it used: memory of a buffer, in every call the same."""

import torch
import torch.nn as nn

LONGEST = 128
WIDTH = 64


class Model(nn.Module):
    """Return x plus its positions, and the positions."""

    def __init__(self, longest: int, width: int):
        super().__init__()
        self.register_buffer("table", torch.randn(longest, width))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [BATCH, LENGTH, WIDTH]; returns the same, and [LENGTH, WIDTH]."""
        rows = self.table[: x.shape[1]]
        return x + rows, rows


def get_inputs():
    """x [BATCH, LENGTH, WIDTH], float32."""
    return [torch.randn(8, 100, WIDTH)]


def get_init_inputs():
    """The longest length and the width."""
    return [LONGEST, WIDTH]
