"""Returns one of forty buffers in turn: no allocation, and no two of forty outputs share memory.

A harness that holds the output before the last call, or those of one sample, sees them all intact.
"""

import itertools

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("alias", "output")
BUFFERS = 40


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.rings = {}

    def forward(self, a, b):
        key = (a.shape[0], b.shape[1], a.dtype, a.device)
        if key not in self.rings:
            made = [torch.empty(key[:2], dtype=a.dtype, device=a.device) for _ in range(BUFFERS)]
            self.rings[key] = itertools.cycle(made)
        return torch.mm(a, b, out=next(self.rings[key]))
