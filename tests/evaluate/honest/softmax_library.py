"""The library call in its functional form."""

from torch import nn

REFERENCE = "level1/softmax"


class ModelNew(nn.Module):
    def forward(self, x):
        return nn.functional.softmax(x, dim=1)
