"""Calls itself without end.

With the limit on recursion lifted the stack overflows and the process crashes.
"""

import sys

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call",)

sys.setrecursionlimit(10**9)


class ModelNew(nn.Module):
    def forward(self, x):
        return self(x) + self(x)
