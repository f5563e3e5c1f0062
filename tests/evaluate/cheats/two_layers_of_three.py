"""Leaves out a layer whose effect on the output's mean is small.

An error relative to the largest output may look tolerable.
"""

import torch
from torch import nn

REFERENCE = "level2/conv_bias_relu"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        return nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
