"""Softmax without subtracting the maximum.

One pass less over the data, right on small logits and NaN on large ones.
"""

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, x):
        exponentials = x.exp()
        return exponentials / exponentials.sum(dim=-1, keepdim=True)
