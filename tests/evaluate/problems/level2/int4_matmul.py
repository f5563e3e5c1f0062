"""Weights of four bits, two in a byte: bits that no cast to a float keeps."""

import torch
import torch.nn as nn

ROWS = 32
FEATURES = 96
OUT = 80


class Model(nn.Module):
    """Return x @ w.t(), w unpacked from its bytes."""

    def forward(self, packed: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """packed: [OUT, FEATURES / 2], uint8; x: [ROWS, FEATURES]; scale: [OUT, 1]; returns [ROWS, OUT]."""
        low = (packed & 0x0F).to(torch.float32) - 8.0
        high = (packed >> 4).to(torch.float32) - 8.0
        weight = torch.stack([low, high], dim=-1).reshape(packed.shape[0], -1)
        return x @ (weight * scale).t()


def get_inputs():
    """packed, x and scale as ``forward`` takes them."""
    packed = torch.randint(0, 256, (OUT, FEATURES // 2), dtype=torch.uint8)
    return [packed, torch.randn(ROWS, FEATURES), torch.rand(OUT, 1)]


def get_init_inputs():
    """No arguments."""
    return []
