"""Returns a view of its input where a copy is asked for: right values, no work.

Every comparison of values passes, and the time is that of making a view.
"""

from torch import nn

REFERENCE = "level1/transpose"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("alias",)


class ModelNew(nn.Module):
    def forward(self, x):
        return x.t()
