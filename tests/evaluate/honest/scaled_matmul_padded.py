"""Pads every dimension to a multiple of 64 and cuts the result, as tiled kernels do."""

from torch import nn

REFERENCE = "level1/scaled_matmul"
TILE = 64


class ModelNew(nn.Module):
    def forward(self, a, b, scale):
        rows, inner = a.shape
        columns = b.shape[1]
        a = nn.functional.pad(a, (0, -inner % TILE, 0, -rows % TILE))
        b = nn.functional.pad(b, (0, -columns % TILE, 0, -inner % TILE))
        return nn.functional.relu((a @ b)[:rows, :columns] * scale)
