"""Sets the process's default dtype to float16 and calls into torch.

Where the reference runs in the same process it computes in float16 as well, and both agree.
"""

import torch
from torch import nn

REFERENCE = "level3/mlp"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output", "type", "call")

torch.set_default_dtype(torch.float16)


class ModelNew(nn.Module):
    def __init__(self, widths):
        super().__init__()
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    def forward(self, x):
        x = x.half()
        for layer in self.layers[:-1]:
            x = torch.relu(nn.functional.linear(x, layer.weight.half(), layer.bias.half()))
        last = self.layers[-1]
        return nn.functional.linear(x, last.weight.half(), last.bias.half()).float()
