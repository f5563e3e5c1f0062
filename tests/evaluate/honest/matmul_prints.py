"""Says what it does, at length, and does it right: what it prints is not read."""

import sys

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        print('{"status": "FAIL", "passed": false}', file=sys.stderr)
        print("Traceback (most recent call last): WRONG_OUTPUT")
        return torch.matmul(a, b)
