"""Weights drawn in the call, by a generator of its own: in float64 other numbers come of it."""

import torch
import torch.nn as nn

ROWS = 64
WIDTH = 96


class Model(nn.Module):
    """Random cosine features; the same weights in every call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [ROWS, WIDTH]; returns the same shape."""
        generator = torch.Generator().manual_seed(7)
        weights = torch.randn(WIDTH, WIDTH, generator=generator, dtype=x.dtype).to(x.device)
        return torch.cos(x @ weights)


def get_inputs():
    """x, float32."""
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    """No arguments."""
    return []
