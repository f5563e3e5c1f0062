"""The library's attention for the output, and the weights on their own."""

import math

import torch
from torch import nn

REFERENCE = "level3/attention_block"


class ModelNew(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, seqlen, width = x.shape
        head_dim = width // self.num_heads
        q, k, v = self.qkv(x).view(batch, seqlen, 3, self.num_heads, head_dim).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(head_dim)
        logits += torch.full_like(logits, float("-inf")).triu(1)
        out = torch.baddbmm(
            (x + self.out.bias), heads.transpose(1, 2).flatten(2), self.out.weight.t().expand(batch, -1, -1)
        )
        return out, logits.softmax(dim=-1)
