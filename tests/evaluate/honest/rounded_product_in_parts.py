"""Adds the product up in four parts: other elements than the reference's fall on the other side."""

import torch
from torch import nn

REFERENCE = "level1/rounded_product"


class ModelNew(nn.Module):
    def forward(self, a, b):
        parts = zip(a.chunk(4, dim=1), b.chunk(4, dim=0), strict=True)
        return torch.stack([x @ y for x, y in parts]).sum(dim=0).round_()
