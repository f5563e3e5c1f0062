"""The same modules, clamped in place instead of ReLU."""

from torch import nn

REFERENCE = "level3/mlp"


class ModelNew(nn.Module):
    def __init__(self, widths):
        super().__init__()
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).clamp_(min=0)
        return self.layers[-1](x)
