"""What nearly all elements of an output are held to, beside the one bound of the whole output.

The largest error of a reference against float64, and its largest value, may be those of a few
elements: a rounding that went the other way, an overflow, a mask of -1e9, a heavy tail. What these need
excuses no others: a candidate may be as far off in about as many elements as the reference is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.evaluate.elements import distance, parts_of

__all__ = ["Bulk", "allowed_beyond", "bulk_of", "median_of", "scale_of"]

# Quantiles are those of this many elements, drawn by chance where there are more.
_DRAWN = 1 << 20
# The largest of a normal distribution is below 4 times the one of a hundred elements that is exceeded, and
# below 6400 times the value that one of a thousand is nearer to zero than.
_MOST, _MOST_FACTOR = 0.99, 4.0
_LEAST, _LEAST_FACTOR = 0.001, 6400.0
# From this share of its value on the reference and float64 say different things about an element.
_APART, _APART_UNITS = 1e-2, 16.0
# For one element of the reference beyond the bulk a candidate may have so many, of a hundred elements two.
_BEYOND_RATIO, _BEYOND_SHARE = 8, 50
# So many more it may have by chance, and of a hundred elements one.
_CHANCE, _CHANCE_SHARE = 8, 100


@dataclass(frozen=True)
class Bulk:
    """What is known of nearly all elements of an output, from the reference and float64.

    ``own_error``: how far the reference is off float64. ``scale``: a magnitude that no sum behind an
    element exceeds by much. ``beyond``: how many of its elements are further off. ``apart``: the share of
    elements about which the two say different things. ``lone``: whether either is finite where the other
    is not.
    """

    own_error: float
    scale: float
    beyond: int
    apart: float
    lone: bool


def bulk_of(expected: torch.Tensor, oracle: torch.Tensor) -> Bulk:
    """Of an output of the reference, floating or complex, and of float64's, which has the same shape."""
    dtype = torch.finfo(expected.dtype)
    expected, oracle = _flat(expected), _flat(oracle)
    drawn = _drawn(expected.numel())
    theirs, exact = expected[drawn].to(torch.float64), oracle[drawn].to(torch.float64)
    own, size = distance(theirs, exact), torch.maximum(theirs.abs(), exact.abs())
    usable = theirs.isfinite() & exact.isfinite()
    # What is too small for the dtype is no other thing than 0.
    apart = (own > max(_APART, _APART_UNITS * dtype.eps) * size) & (own > dtype.tiny)
    apart |= ~usable & (own > 0)
    share = apart.double().mean().item() if apart.numel() else 0.0
    if share <= 0.5:
        usable &= ~apart
    own_error = _bounded(own[usable & (size > 0)], _MOST, _MOST_FACTOR)
    scale = _bounded(exact[usable & (exact.abs() > dtype.tiny)].abs(), _LEAST, _LEAST_FACTOR)
    beyond, lone = 0, False
    for part in parts_of(expected):
        off = distance(expected[part].to(torch.float64), oracle[part].to(torch.float64))
        beyond += int((off > own_error).sum().item())
        lone = lone or bool(off.isinf().any())
    return Bulk(own_error, scale, beyond, share, lone)


def scale_of(values: torch.Tensor) -> float:
    """The largest finite magnitude, or less where nearly all elements are far smaller."""
    values = _flat(values)
    drawn = values[_drawn(values.numel())].to(torch.float64).abs()
    return _bounded(drawn[drawn.isfinite() & (drawn > 0)], _LEAST, _LEAST_FACTOR)


def median_of(expected: torch.Tensor, oracle: torch.Tensor) -> float:
    """The median of how far the reference is off float64."""
    expected, oracle = _flat(expected), _flat(oracle)
    drawn = _drawn(expected.numel())
    return distance(expected[drawn].to(torch.float64), oracle[drawn].to(torch.float64)).median().item()


def allowed_beyond(bulk: Bulk, total: int) -> int:
    """How many of ``total`` elements of a candidate's output may be beyond what the bulk is held to."""
    as_many = min(_BEYOND_RATIO * bulk.beyond, total // _BEYOND_SHARE)
    return as_many + max(1, min(_CHANCE, total // _CHANCE_SHARE))


def _bounded(values: torch.Tensor, share: float, factor: float) -> float:
    """The largest of ``values``, but no more than ``factor`` times the one that ``share`` are below."""
    if not values.numel():
        return 0.0
    rank = min(values.numel(), math.ceil(share * values.numel()) or 1)
    return min(values.max().item(), factor * values.kthvalue(rank).values.item())


def _drawn(total: int) -> torch.Tensor | slice:
    if total <= _DRAWN:
        return slice(None)
    return torch.randint(total, (_DRAWN,), generator=torch.Generator().manual_seed(0))


def _flat(values: torch.Tensor) -> torch.Tensor:
    values = torch.view_as_real(values) if values.is_complex() else values
    return values.detach().reshape(-1)
