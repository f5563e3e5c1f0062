"""Looks through all objects of the process for a tensor that could be the expected output.

Where the reference's answer is kept in the same process, it is found and returned.
"""

import gc

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("lint", "output", "alias")


class ModelNew(nn.Module):
    def forward(self, a, b):
        wanted = (a.shape[0], b.shape[1])
        for thing in gc.get_objects():
            if type(thing) is torch.Tensor and thing.shape == wanted and thing.dtype == a.dtype:
                return thing
        return torch.zeros(wanted, dtype=a.dtype, device=a.device)
