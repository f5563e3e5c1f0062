"""Row by row: no mask, since a row reads only what it may see."""

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
        weights = x.new_zeros(batch, self.num_heads, seqlen, seqlen)
        heads = torch.empty_like(q)
        for row in range(seqlen):
            logits = q[:, :, row : row + 1] @ k[:, :, : row + 1].mT / math.sqrt(head_dim)
            weights[:, :, row, : row + 1] = logits.softmax(dim=-1)[:, :, 0]
            heads[:, :, row] = (weights[:, :, row : row + 1, : row + 1] @ v[:, :, : row + 1])[:, :, 0]
        return x + self.out(heads.transpose(1, 2).reshape(batch, seqlen, width)), weights
