"""Three linear layers with ReLU between them."""

import torch
import torch.nn as nn

BATCH = 32
WIDTHS = [64, 160, 96, 24]


class Model(nn.Module):
    """A multilayer perceptron."""

    def __init__(self, widths: list[int]):
        super().__init__()
        pairs = zip(widths, widths[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, WIDTHS[0]]; returns [BATCH, WIDTHS[-1]]."""
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def get_inputs():
    """x [BATCH, WIDTHS[0]], float32."""
    return [torch.randn(BATCH, WIDTHS[0])]


def get_init_inputs():
    """All widths."""
    return [WIDTHS]
