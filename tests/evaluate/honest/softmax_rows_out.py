"""Row by row into a preallocated output."""

import torch
from torch import nn

REFERENCE = "level1/softmax"


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        for source, target in zip(x, out, strict=True):
            torch.softmax(source, dim=0, out=target)
        return out
