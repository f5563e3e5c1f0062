"""Two elements of an input change places, and what an input may promise of itself stays.

Zeros stay where they are (triangular, banded, one-hot), and so do the sum of every row, the diagonal of
square matrices, symmetry, and the order of sorted rows.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.evaluate.elements import unravel
from kernels.evaluate.workers.exchange import tensors_of

__all__ = ["exchange_extremes"]

# Rows that are looked at in a tensor: the one with the largest element, and others evenly spaced.
_MOST_ROWS = 256


def exchange_extremes(inputs: Any) -> str:
    """In one row of each floating tensor of ``inputs`` exchange its largest and smallest element, in place.

    Returns why nothing could be exchanged, or nothing.
    """
    reasons: list[str] = []
    changed: set[int] = set()
    for path, tensor in tensors_of(inputs):
        storage = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
        if storage in changed:  # another view of what was exchanged: twice would be never
            continue
        reason = _exchange(tensor.detach())
        if not reason:
            changed.add(storage)
        reasons.append(f"input{path}: {reason}")
    return "" if changed else "; ".join(reasons[:4]) or "there is no tensor"


def _exchange(tensor: torch.Tensor) -> str:
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        return "no floating tensor"
    if tensor.numel() < 2 or not tensor.ndim or tensor.layout is not torch.strided or 0 in tensor.stride():
        return "no two elements in memory of their own"
    shape, length = tuple(tensor.shape), tensor.shape[-1]
    count = tensor.numel() // length
    step = max(1, count // _MOST_ROWS)
    numbers = torch.arange(count - 1, -1, -step, device=tensor.device)
    numbers = torch.cat([tensor.argmax().reshape(1) // length, numbers])
    rows = tensor[torch.unravel_index(numbers, shape[:-1])] if shape[:-1] else tensor.unsqueeze(0)
    usable = (rows != 0) & (rows == rows)
    square = tensor.ndim >= 2 and shape[-2] == length
    if square:
        usable.scatter_(1, (numbers % length).unsqueeze(1), False)
    low = torch.where(usable, rows, torch.inf).min(dim=-1)
    high = torch.where(usable, rows, -torch.inf).max(dim=-1)
    different = (low.values < high.values) & (usable.sum(dim=-1) > 1)
    if not bool(different.any()):
        return "no row has two different elements that may change places"
    rising = (rows[:, 1:] >= rows[:, :-1]).all(dim=-1)
    falling = (rows[:, 1:] <= rows[:, :-1]).all(dim=-1)
    # Rows of two elements are always one of both; that they are sorted shows in all of them.
    if not bool((different & ~rising).any() and (different & ~falling).any()):
        return "its rows are sorted"
    mixed = different & ~rising & ~falling
    chosen = int((mixed if bool(mixed.any()) else different).int().argmax())
    row = unravel(int(numbers[chosen]), shape[:-1])
    pair = int(low.indices[chosen]), int(high.indices[chosen])
    places = [(*row, pair[0]), (*row, pair[1])]
    if square and torch.equal(tensor, tensor.mT):
        places += [(*row[:-1], column, row[-1]) for column in pair]
    values = [tensor[place].clone() for place in places]
    for number, place in enumerate(places):
        tensor[place] = values[number ^ 1]
    return ""
