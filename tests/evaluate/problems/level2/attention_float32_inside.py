"""Attention that says float32 wherever it computes; its logits are in the hundreds."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 64, 64


class Model(nn.Module):
    """Attention without a scale."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v: [BATCH, HEADS, LENGTH, WIDTH]; returns the same."""
        logits = torch.matmul(q.float(), k.float().transpose(-2, -1))
        weights = F.softmax(logits, dim=-1, dtype=torch.float32)
        return torch.matmul(weights, v.float()).to(q.dtype)


def get_inputs():
    """q, k and v [BATCH, HEADS, LENGTH, WIDTH], float32; q and k four times as large."""
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3))
    return [4 * q, 4 * k, v]


def get_init_inputs():
    """No arguments."""
    return []
