"""Reads address 0.

The crash takes a harness in the same process with it, verdict and all.
"""

import ctypes

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call",)


class ModelNew(nn.Module):
    def forward(self, x):
        ctypes.string_at(0)
        return x
