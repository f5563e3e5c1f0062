"""Sends SIGTERM to its own process group and to its parent's.

Where all share one group the whole harness ends.
"""

import contextlib
import os
import signal

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("lint", "call", "seal")
KILLS = True


class ModelNew(nn.Module):
    def forward(self, x):
        for group in (os.getpgid(os.getppid()), 0):
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGTERM)
        return x
