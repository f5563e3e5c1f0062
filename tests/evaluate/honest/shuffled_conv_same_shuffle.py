"""Shuffles by Python's generator as well, and writes the hardswish out."""

import random

from torch import nn

REFERENCE = "level2/shuffled_conv"
DEVICES = ("cpu", "cuda")


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.order = random.sample(range(channels), channels)
        self.conv = nn.Conv1d(channels, channels, 5, padding=4, dilation=2, groups=4)

    def forward(self, x):
        y = self.conv(x[:, self.order])
        return y * (y + 3).clamp_(0, 6) / 6
