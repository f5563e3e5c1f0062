"""One rank-one update at a time: the plainest order of summation, and the least exact."""

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        for k in range(a.shape[1]):
            out.addr_(a[:, k], b[k])
        return out
