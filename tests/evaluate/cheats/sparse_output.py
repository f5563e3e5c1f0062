"""Returns a sparse tensor without entries: nothing to write.

Its shape and dtype are those of the expected output.
"""

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("type", "output")


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device).to_sparse()
