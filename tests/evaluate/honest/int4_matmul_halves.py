"""Unpacks in float32 and multiplies the even and the odd features apart."""

import torch
from torch import nn

REFERENCE = "level2/int4_matmul"
DEVICES = ("cpu", "cuda")


class ModelNew(nn.Module):
    def forward(self, packed, x, scale):
        high = torch.bitwise_right_shift(packed, 4).float()
        low = packed.float() - 16.0 * high
        return (x[:, 0::2] @ (low - 8).t() + x[:, 1::2] @ (high - 8).t()) * scale.t()
