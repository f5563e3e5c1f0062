"""The product inside a scripted function."""

import torch
from torch import nn

REFERENCE = "level1/matmul"


@torch.jit.script
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.size(0), b.size(1), dtype=a.dtype, device=a.device)
    for start in range(0, a.size(1), 64):
        total += a[:, start : start + 64] @ b[start : start + 64]
    return total


class ModelNew(nn.Module):
    def forward(self, a, b):
        return product(a, b)
