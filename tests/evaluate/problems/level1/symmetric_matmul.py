"""The product of two symmetric matrices: rows may be read as columns."""

import torch
import torch.nn as nn

N = 160


class Model(nn.Module):
    """Return a @ b."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a, b: [N, N], symmetric; returns [N, N]."""
        return torch.matmul(a, b)


def get_inputs():
    """a and b [N, N], float32, symmetric."""
    a, b = torch.rand(N, N), torch.rand(N, N)
    return [(a + a.T) / 2, (b + b.T) / 2]


def get_init_inputs():
    """No arguments."""
    return []
