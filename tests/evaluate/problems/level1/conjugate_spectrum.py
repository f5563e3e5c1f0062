"""The conjugate of a Fourier transform: torch only notes that the imaginary part is to be negated."""

import torch
import torch.nn as nn

ROWS = 64
LENGTH = 128


class Model(nn.Module):
    """The conjugated spectrum of each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [ROWS, LENGTH]; returns the same shape, complex."""
        return torch.fft.fft(x, dim=-1).conj()


def get_inputs():
    """x [ROWS, LENGTH], float32."""
    return [torch.randn(ROWS, LENGTH)]


def get_init_inputs():
    """No arguments."""
    return []
