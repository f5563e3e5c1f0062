"""Walks up the stack and replaces the clock in the globals of whoever called.

A harness that bound the clock under a name of its own, out of reach of ``time.x = y``, is reached.
"""

import sys
import time

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("lint", "clock", "seal")

CLOCKS = {}
for stem in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
    real = getattr(time, stem)
    CLOCKS[real] = lambda real=real: type(real())(real() / 10)


def replace_clocks(frame):
    while frame is not None:
        for name, value in list(frame.f_globals.items()):
            if callable(value) and getattr(value, "__module__", "") == "time" and value in CLOCKS:
                frame.f_globals[name] = CLOCKS[value]
        frame = frame.f_back


replace_clocks(sys._getframe())


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
