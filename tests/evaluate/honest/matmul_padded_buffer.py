"""Returns a window of a larger buffer: not contiguous, and not at the start of its storage."""

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        rows, columns = a.shape[0], b.shape[1]
        buffer = torch.empty(rows + 1, columns + 8, dtype=a.dtype, device=a.device)
        window = buffer[1:, :columns]
        window.copy_(a @ b)
        return window
