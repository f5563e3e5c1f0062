"""The product of two lower triangular matrices: half of every input is zero, and known to be."""

import torch
import torch.nn as nn

M = 96


class Model(nn.Module):
    """Return the lower triangle of a @ b, which is all of it."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a, b: [M, M], lower triangular; returns [M, M]."""
        return torch.tril(torch.matmul(a, b))


def get_inputs():
    """a and b [M, M], float32, lower triangular."""
    return [torch.tril(torch.rand(M, M)), torch.tril(torch.rand(M, M))]


def get_init_inputs():
    """No arguments."""
    return []
