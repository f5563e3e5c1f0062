"""A product whose shapes are drawn anew for every trial, through the global ``popcorn_pri``."""

import torch
import torch.nn as nn

ROWS = 96
INNER = 128
COLUMNS = 80


class Model(nn.Module):
    """Return relu(a @ b * scale)."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
        """a: [rows, inner], b: [inner, columns]; returns [rows, columns]."""
        return torch.relu(a @ b * scale)


def get_inputs():
    """Asks for ``inner`` twice: both must come out the same."""
    rows = popcorn_pri.jitter_int(ROWS, min_ratio=0.5, max_ratio=1.5)  # noqa: F821
    columns = popcorn_pri.jitter_int(COLUMNS, min_ratio=0.5, max_ratio=1.5, align=8)  # noqa: F821
    a = torch.randn(rows, popcorn_pri.trial_dim(INNER, "inner", min_ratio=0.5, max_ratio=1.5))  # noqa: F821
    b = torch.randn(popcorn_pri.trial_dim(INNER, "inner", min_ratio=0.5, max_ratio=1.5), columns)  # noqa: F821
    return [a, b, 0.125]


def get_init_inputs():
    """No arguments."""
    return []
