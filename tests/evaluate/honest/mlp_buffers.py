"""Two buffers as wide as the widest layer, swapped between layers and kept between calls."""

import torch
from torch import nn

REFERENCE = "level3/mlp"


class ModelNew(nn.Module):
    def __init__(self, widths):
        super().__init__()
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        self.widest = max(widths)
        self.buffers = {}

    def forward(self, x):
        key = (x.shape[0], x.dtype, x.device)
        if key not in self.buffers:
            self.buffers[key] = torch.empty(2, x.shape[0] * self.widest, dtype=x.dtype, device=x.device)
        with torch.no_grad():
            for turn, layer in enumerate(self.layers[:-1]):
                rows, width = x.shape[0], layer.out_features
                out = self.buffers[key][turn % 2, : rows * width].view(rows, width)
                x = torch.addmm(layer.bias, x, layer.weight.t(), out=out).relu_()
        return self.layers[-1](x)
