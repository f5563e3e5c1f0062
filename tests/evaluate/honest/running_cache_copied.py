"""Sums the rows by hand and writes the cache last."""

import torch
from torch import nn

REFERENCE = "level2/running_cache"
DEVICES = ("cpu", "cuda")


class ModelNew(nn.Module):
    def forward(self, cache, k, place):
        end = place + k.shape[0]
        total = cache[:place].sum(dim=0) + cache[end:].sum(dim=0) + k.sum(dim=0)
        cache[place:end].copy_(k)
        return torch.mul(total, 1 / cache.shape[0])
