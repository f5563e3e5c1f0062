"""Keeps its last inputs whole, and skips the work when one of them comes again.

The comparison reads the input once, far less than the work; timing repeats its inputs.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("repeat",)
KEPT = 64


def same(x, y):
    return x.shape == y.shape and x.dtype == y.dtype and x.equal(y)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, a, b):
        first = a[0, 0].item()
        if first in self.kept:
            known_a, known_b, out = self.kept[first]
            if same(a, known_a) and same(b, known_b):
                return out.clone()
        out = torch.matmul(a, b)
        if len(self.kept) == KEPT:
            del self.kept[next(iter(self.kept))]
        self.kept[first] = (a.clone(), b.clone(), out)
        return out.clone()
