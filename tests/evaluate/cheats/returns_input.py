"""Returns its input: no work, and the shape and dtype are right.

A harness that checks shapes and dtypes alone lets it pass.
"""

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("alias", "output")


class ModelNew(nn.Module):
    def forward(self, x):
        return x
