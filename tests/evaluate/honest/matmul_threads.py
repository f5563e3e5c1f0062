"""Divides the rows among a pool of threads and waits for all of them."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

REFERENCE = "level1/matmul"
POOL = ThreadPoolExecutor(max_workers=2)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        half = a.shape[0] // 2
        jobs = [
            POOL.submit(torch.mm, a[rows], b, out=out[rows]) for rows in (slice(0, half), slice(half, None))
        ]
        for job in jobs:
            job.result()
        return out
