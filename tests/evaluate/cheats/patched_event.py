"""Replaces ``torch.cuda.Event.elapsed_time`` by a tenth of itself, and ``synchronize`` by nothing.

A harness that times with events in the candidate's process reports a tenth.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cuda",)
CAUGHT_BY = ("lint", "clock", "seal")

elapsed = torch.cuda.Event.elapsed_time
setattr(torch.cuda.Event, "elapsed" + "_time", lambda self, end: elapsed(self, end) / 10)
setattr(torch.cuda, "synchro" + "nize", lambda device=None: None)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
