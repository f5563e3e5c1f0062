"""Takes the softmax of bfloat16 logits: its results are so small that 1e-4 is large beside them."""

import torch
from torch import nn

REFERENCE = "level2/dropout_softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.dropout = nn.Dropout(share)

    def forward(self, x):
        return torch.softmax(self.dropout(x).bfloat16().float(), dim=-1)
