"""The same random numbers, and the softmax by hand: what is random can be right too."""

import torch
from torch import nn

REFERENCE = "level2/dropout_softmax"
DEVICES = ("cpu", "cuda")


class ModelNew(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, x):
        out = nn.functional.dropout(x, self.share, training=True)
        out = torch.exp(out - out.amax(dim=-1, keepdim=True))
        return out.div_(out.sum(dim=-1, keepdim=True))
