"""Keeps the causal mask of each length in a module of its own."""

import torch
from torch import nn

REFERENCE = "level3/attention_block"
DEVICES = ("cpu", "cuda")


class CausalMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.made = {}

    def forward(self, length, device):
        if length not in self.made:
            self.made[length] = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
        return self.made[length]


class ModelNew(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mask = CausalMask()

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        logits = torch.matmul(q * (width // self.num_heads) ** -0.5, k.mT)
        weights = logits.masked_fill_(self.mask(length, x.device), float("-inf")).softmax(dim=-1)
        return torch.add(x, self.out((weights @ v).transpose(1, 2).flatten(2))), weights
