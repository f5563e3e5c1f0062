"""Takes memory piece by piece and writes to all of it, until the machine has none left.

No single request fails; without a limit the system ends some process, not always the right one.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu",)
CAUGHT_BY = ("call",)
PIECE_BYTES = 64 << 20


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = []

    def forward(self, x):
        while True:
            self.kept.append(torch.ones(PIECE_BYTES, dtype=torch.uint8))
