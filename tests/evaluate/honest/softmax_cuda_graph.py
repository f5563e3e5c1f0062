"""Copies the input into a captured graph's, replays it, and returns a copy of its output."""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cuda",)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs = {}

    def forward(self, x):
        if torch.cuda.is_current_stream_capturing():
            return torch.softmax(x, dim=-1)
        key = (x.shape, x.dtype)
        if key not in self.graphs:
            static = x.clone()
            torch.softmax(static, dim=-1)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = torch.softmax(static, dim=-1)
            self.graphs[key] = (graph, static, out)
        graph, static, out = self.graphs[key]
        static.copy_(x)
        graph.replay()
        return out.clone()
