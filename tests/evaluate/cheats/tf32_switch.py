"""Switches TF32 on and calls the library.

One line, several times the speed, and a thousand times the error.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cuda",)
CAUGHT_BY = ("output", "lint")

torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
