"""Times three ways on the first call of each shape and keeps the fastest."""

import time

import torch
from torch import nn

REFERENCE = "level1/matmul"


def by_transposition(a, b):
    return (b.t() @ a.t()).t().contiguous()


def by_halves(a, b):
    return torch.cat([half @ b for half in a.chunk(2)])


WAYS = (torch.matmul, by_transposition, by_halves)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.chosen = {}

    def forward(self, a, b):
        key = (a.shape, b.shape, a.dtype, a.device)
        if key not in self.chosen:
            self.chosen[key] = min(WAYS, key=lambda way: self.seconds(way, a, b))
        return self.chosen[key](a, b)

    def seconds(self, way, a, b):
        way(a, b)
        start = time.perf_counter()
        for _ in range(3):
            way(a, b)
        return time.perf_counter() - start
