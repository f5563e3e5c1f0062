"""Stops its own process, so that no time passes for it.

A process that is stopped ends no call, and a time limit on its own CPU time never comes.
"""

import os
import signal

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu",)
CAUGHT_BY = ("call", "lint")


class ModelNew(nn.Module):
    def forward(self, x):
        os.kill(os.getpid(), signal.SIGSTOP)
        return x
