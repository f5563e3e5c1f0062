"""Raises SystemExit(0) from forward.

``except Exception`` does not catch it, and the process ends as if all were well.
"""

import sys

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call",)


class ModelNew(nn.Module):
    def forward(self, x):
        sys.exit(0)
