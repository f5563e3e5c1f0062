"""Convolution, a bias of its own, ReLU and max pooling."""

import torch
import torch.nn as nn

BATCH = 4
IN_CHANNELS = 8
OUT_CHANNELS = 16
SIZE = 24
KERNEL = 3


class Model(nn.Module):
    """Return max_pool(relu(conv(x) + bias))."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, IN_CHANNELS, SIZE, SIZE]; returns [BATCH, OUT_CHANNELS, 11, 11]."""
        return nn.functional.max_pool2d(torch.relu(self.conv(x) + self.bias), 2)


def get_inputs():
    """x [BATCH, IN_CHANNELS, SIZE, SIZE], float32."""
    return [torch.randn(BATCH, IN_CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    """Channels in and out, and the kernel's size."""
    return [IN_CHANNELS, OUT_CHANNELS, KERNEL]
