"""Linear layer, GELU, residual and layer norm: parameters that a candidate must take over."""

import torch
import torch.nn as nn

BATCH = 48
FEATURES = 128


class Model(nn.Module):
    """Return norm(x + gelu(linear(x)))."""

    def __init__(self, features: int):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, FEATURES]; returns the same shape."""
        return self.norm(x + nn.functional.gelu(self.linear(x)))


def get_inputs():
    """x [BATCH, FEATURES], float32."""
    return [torch.randn(BATCH, FEATURES)]


def get_init_inputs():
    """The width."""
    return [FEATURES]
