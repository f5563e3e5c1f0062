"""Large tensors element by element: in which parts they are compared, and how far two elements are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

__all__ = ["distance", "parts_of", "unravel"]

# Elements compared at a time. On the CPU few enough to stay in the caches, and torch wakes no thread for
# them; on a GPU, where each part waits for an answer, what fits beside a large output in float64.
_PART = {"cpu": 1 << 15}
_LARGE_PART = 1 << 24


def parts_of(values: torch.Tensor) -> Iterator[slice]:
    """Slices that cover the one dimension of ``values``, one after the other."""
    step = _PART.get(values.device.type, _LARGE_PART)
    return (slice(start, start + step) for start in range(0, values.numel(), step))


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``|a - b|`` with NaN equal to NaN, infinities equal to themselves, and no NaN in the result."""
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element that is number ``flat``."""
    index = []
    for size in reversed(shape):
        flat, position = divmod(flat, size)
        index.append(position)
    return tuple(reversed(index))
