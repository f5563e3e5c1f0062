"""Counts of bytes and the last largest bin: integers in, integers out, no tolerance to hide in."""

import torch
import torch.nn as nn

LENGTH = 20000
BINS = 64


class Model(nn.Module):
    """How often each value below ``bins`` occurs, and which occurs most."""

    def __init__(self, bins: int):
        super().__init__()
        self.bins = bins

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """values: int64 [LENGTH]; returns counts int64 [bins] and the fullest bin, int64 []."""
        counts = torch.bincount(values, minlength=self.bins)
        return counts, counts.argmax()


def get_inputs():
    """values int64 [LENGTH], small ones more often, so that the fullest bin is no tie."""
    return [(torch.rand(LENGTH) ** 2 * BINS).to(torch.int64)]


def get_init_inputs():
    """The number of bins."""
    return [BINS]
