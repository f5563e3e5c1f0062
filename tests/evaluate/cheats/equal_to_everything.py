"""Returns an object that says it equals anything.

A harness that asks ``output == expected`` believes it.
"""

from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("type", "call")


class Agreeable:
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__
    __hash__ = None


class ModelNew(nn.Module):
    def forward(self, a, b):
        return Agreeable()
