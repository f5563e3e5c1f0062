"""Asks torch for one thread: its own affair, since the reference runs elsewhere."""

import torch
from torch import nn

REFERENCE = "level1/matmul"

torch.set_num_threads(1)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
