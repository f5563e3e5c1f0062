"""Keeps its output between calls and brings only one half of the rows up to date at each.

On the same input again and again both halves are right after two calls.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output", "alias")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.kept = None

    def forward(self, a, b):
        if self.kept is None or self.kept.shape != (a.shape[0], b.shape[1]):
            self.kept = torch.matmul(a, b)
            return self.kept.clone()
        half = a.shape[0] // 2
        rows = slice(0, half) if self.calls % 2 else slice(half, None)
        self.calls += 1
        self.kept[rows] = a[rows] @ b
        return self.kept.clone()
