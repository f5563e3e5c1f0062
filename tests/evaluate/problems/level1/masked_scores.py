"""Scores of which half are a mask of -1e9: the largest value says nothing about the others."""

import torch
import torch.nn as nn

BATCH = 4
STEPS = 96
WIDTH = 64


class Model(nn.Module):
    """Causal attention scores before the softmax."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """q and k [BATCH, STEPS, WIDTH]; returns [BATCH, STEPS, STEPS]."""
        scores = q @ k.transpose(-2, -1) / WIDTH**0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(later, -1e9)


def get_inputs():
    """q and k, float32."""
    return [torch.randn(BATCH, STEPS, WIDTH), torch.randn(BATCH, STEPS, WIDTH)]


def get_init_inputs():
    """No arguments."""
    return []
