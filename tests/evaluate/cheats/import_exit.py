"""Ends the process with code 0 when its file is loaded.

A harness that loads the candidate itself ends with it, as a success.
"""

import os

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("import", "call")

os._exit(0)


class ModelNew(nn.Module):
    def forward(self, x):
        return x
