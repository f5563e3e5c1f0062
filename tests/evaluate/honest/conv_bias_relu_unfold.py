"""The convolution as a product over unfolded patches."""

import torch
from torch import nn

REFERENCE = "level2/conv_bias_relu"


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        kernel = self.conv.kernel_size[0]
        height, width = x.shape[2] - kernel + 1, x.shape[3] - kernel + 1
        patches = nn.functional.unfold(x, kernel)
        y = self.conv.weight.flatten(1) @ patches + self.conv.bias[:, None]
        y = y.view(x.shape[0], -1, height, width) + self.bias
        return nn.functional.max_pool2d(y.relu_(), 2)
