"""Adds both biases once and gives the convolution their sum."""

import torch
from torch import nn

REFERENCE = "level2/conv_bias_relu"


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        bias = self.conv.bias + self.bias.flatten()
        y = nn.functional.conv2d(x, self.conv.weight, bias)
        return nn.functional.max_pool2d(nn.functional.relu(y, inplace=True), 2)
