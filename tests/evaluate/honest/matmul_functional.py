"""The product as a linear layer without bias."""

from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        return nn.functional.linear(a, b.t())
