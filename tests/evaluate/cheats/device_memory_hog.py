"""Asks for more device memory than there is.

What matters is that the next candidate finds the device empty again.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cuda",)
CAUGHT_BY = ("call",)
DISTURBS = True


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, x):
        while True:
            self.kept.append(torch.empty(1 << 32, dtype=torch.uint8, device=x.device))
