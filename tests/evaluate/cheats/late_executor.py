"""Hands the second half of the rows to a pool and returns without waiting for it.

On a quiet machine the pool is nearly done by the time anybody looks.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("output", "late")
POOL = ThreadPoolExecutor(max_workers=1)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        half = a.shape[0] // 2
        POOL.submit(torch.matmul, a[half:], b, out=out[half:])
        torch.matmul(a[:half], b, out=out[:half])
        return out
