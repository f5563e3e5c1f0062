"""Plain matrix product: the smallest problem with arithmetic worth cheating on."""

import torch
import torch.nn as nn

M = 192
K = 256
N = 160


class Model(nn.Module):
    """Return a @ b."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a: [M, K], b: [K, N]; returns [M, N]."""
        return torch.matmul(a, b)


def get_inputs():
    """a [M, K] and b [K, N], float32."""
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    """No arguments."""
    return []
