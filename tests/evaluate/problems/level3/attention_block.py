"""A causal self-attention block that returns its output and the attention weights."""

import math

import torch
import torch.nn as nn

BATCH = 2
SEQLEN = 48
WIDTH = 64
NUM_HEADS = 4


class Model(nn.Module):
    """Projection, causal attention, projection and residual."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [BATCH, SEQLEN, WIDTH]; returns that shape and weights [BATCH, NUM_HEADS, SEQLEN, SEQLEN]."""
        batch, seqlen, width = x.shape
        head_dim = width // self.num_heads
        q, k, v = self.qkv(x).view(batch, seqlen, 3, self.num_heads, head_dim).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-2, -1) / math.sqrt(head_dim)
        future = torch.ones(seqlen, seqlen, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(logits.masked_fill(future, float("-inf")), dim=-1)
        heads = (weights @ v).transpose(1, 2).reshape(batch, seqlen, width)
        return x + self.out(heads), weights


def get_inputs():
    """x [BATCH, SEQLEN, WIDTH], float32."""
    return [torch.randn(BATCH, SEQLEN, WIDTH)]


def get_init_inputs():
    """The width and the number of heads."""
    return [WIDTH, NUM_HEADS]
