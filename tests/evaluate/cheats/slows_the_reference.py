"""Gives the judge's other processes the lowest priority, and computes as torch does.

The times that it is held against become longer; its own stay as they are.
"""

import os
from pathlib import Path

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("seal",)
KILLS = True
JUDGE = os.getppid()

for other in Path(f"/proc/{JUDGE}/task/{JUDGE}/children").read_text().split():
    if int(other) != os.getpid():
        os.setpriority(os.PRIO_PROCESS, int(other), 19)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
