"""Captures a CUDA graph on its first inputs and replays it for all others.

A replay reads the addresses it was captured with: right while a harness passes the same tensors.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cuda",)
CAUGHT_BY = ("output", "order")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def forward(self, a, b):
        if self.graph is None:
            self.a, self.b = a, b
            torch.matmul(a, b)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = torch.matmul(self.a, self.b)
        self.graph.replay()
        return self.out.clone()
