"""Replaces the clock by one that runs ten times slower.

A harness in the same process that calls ``time.perf_counter`` measures a tenth.
"""

import time

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("lint", "clock", "seal")

real, real_ns = time.perf_counter, time.perf_counter_ns
time.perf_counter = lambda: real() / 10
time.perf_counter_ns = lambda: real_ns() // 10


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
