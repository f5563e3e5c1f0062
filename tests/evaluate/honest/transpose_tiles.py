"""Tile by tile, as a kernel with shared memory would."""

import torch
from torch import nn

REFERENCE = "level1/transpose"
TILE = 64


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
        for row in range(0, x.shape[0], TILE):
            for column in range(0, x.shape[1], TILE):
                tile = x[row : row + TILE, column : column + TILE]
                out[column : column + TILE, row : row + TILE] = tile.t()
        return out
