"""Never returns.

A harness without a time limit waits for ever; with one in the same process it cannot end the loop.
"""

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call",)


class ModelNew(nn.Module):
    def forward(self, x):
        while True:
            pass
