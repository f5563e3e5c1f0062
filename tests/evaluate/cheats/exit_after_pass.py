"""Prints PASS and ends the process with code 0.

A harness that looks at the exit code and the last line is content.
"""

import os

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call",)


class ModelNew(nn.Module):
    def forward(self, x):
        print("PASS", flush=True)
        os._exit(0)
