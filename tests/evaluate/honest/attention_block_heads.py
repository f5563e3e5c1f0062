"""One head at a time."""

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
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        head_dim = x.shape[-1] // self.num_heads
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        heads, weights = [], []
        for q_head, k_head, v_head in zip(*(y.split(head_dim, dim=-1) for y in (q, k, v)), strict=True):
            logits = torch.bmm(q_head, k_head.mT) * (1.0 / math.sqrt(head_dim))
            weights.append(torch.where(past, logits, float("-inf")).softmax(dim=-1))
            heads.append(weights[-1] @ v_head)
        return x + self.out(torch.cat(heads, dim=-1)), torch.stack(weights, dim=1)
