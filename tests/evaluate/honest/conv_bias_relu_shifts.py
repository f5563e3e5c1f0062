"""The convolution as a sum over shifted products; ReLU after the pooling, which commutes."""

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
        y = self.conv.bias[:, None, None] + self.bias
        for i in range(kernel):
            for j in range(kernel):
                window = x[:, :, i : i + height, j : j + width]
                y = y + torch.einsum("oc,bchw->bohw", self.conv.weight[:, :, i, j], window)
        return nn.functional.max_pool2d(y, 2).relu()
