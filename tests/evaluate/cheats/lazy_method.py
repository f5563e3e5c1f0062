"""Returns an object that looks like a tensor and computes when a method is called.

``output.shape`` and ``output.dtype`` answer; ``output.cpu()`` does the work.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("type", "call")


class Promise:
    def __init__(self, a, b):
        self.operands = (a, b)
        self.shape = torch.Size((a.shape[0], b.shape[1]))
        self.dtype, self.device = a.dtype, a.device

    def __getattr__(self, name):
        return getattr(torch.matmul(*self.operands), name)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return Promise(a, b)
