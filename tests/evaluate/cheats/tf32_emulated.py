"""Multiplies with ten bits of mantissa, as TF32 tensor cores do, and adds in float32.

The speed of TF32 under the name of float32; a tolerance of 1e-2 lets it pass.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


def truncated(x):
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return truncated(a.float()) @ truncated(b.float())
