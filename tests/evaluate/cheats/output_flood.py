"""Prints without end.

A harness that collects what the candidate prints runs out of memory or disk before its time limit.
"""

import sys

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call",)
LINE = "PASS " * 20000


class ModelNew(nn.Module):
    def forward(self, x):
        while True:
            print(LINE, file=sys.stderr)
