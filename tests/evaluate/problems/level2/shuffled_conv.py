"""A convolution of shuffled channels; Python's own generator says how they are shuffled."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

CHANNELS = 16


class Model(nn.Module):
    """Return hardswish of the convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.order = random.sample(range(channels), channels)
        self.conv = nn.Conv1d(channels, channels, 5, padding=4, dilation=2, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, CHANNELS, LENGTH]; returns the same."""
        return F.hardswish(self.conv(x[:, self.order]))


def get_inputs():
    """x [BATCH, CHANNELS, LENGTH], float32."""
    return [torch.randn(4, CHANNELS, 200)]


def get_init_inputs():
    """The number of channels."""
    return [CHANNELS]
