"""Computes the first output and fills the second, which nobody is thought to look at, with a constant.

A harness that compares ``outputs[0]`` lets it pass.
"""

import torch
from torch import nn

REFERENCE = "level3/attention_block"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, seqlen, width = x.shape
        parts = self.qkv(x).view(batch, seqlen, 3, self.num_heads, width // self.num_heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        weights = torch.full((batch, self.num_heads, seqlen, seqlen), 1.0 / seqlen).to(x)
        return x + self.out(heads.transpose(1, 2).reshape(batch, seqlen, width)), weights
