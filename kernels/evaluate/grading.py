"""How right a candidate's output is: any dtype, with every figure that a report shows.

Where the reference itself is off float64, its own error is the yardstick. One draw's error is luck where
two keys nearly tie; there the yardstick is, element by element, how far rounding to float32 moves the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from kernels.evaluate.bulk import Bulk, allowed_beyond, bulk_of, scale_of
from kernels.evaluate.elements import distance, parts_of, unravel
from kernels.evaluate.evaluation import OutputError
from kernels.problem import Tolerance

__all__ = ["Bounds", "Known", "bounds_of", "output_error", "timed_bounds"]

# By how many units of the dtype's precision an output may be further from float64 than 8 (or,
# for short dtypes, 2) times the reference's own error. Summing 16384 products in a row
# instead of in blocks costs 30 units of float32; TF32 inputs cost over a thousand.
_UNITS = {"long": 64.0, "short": 2.0}
_RATIO = {"long": 8.0, "short": 2.0}
# How many times what rounding to float32 moves an element may be off, in a plain file's outputs.
_MOVED_RATIO = 2.0
# Where no tolerance applies (logits in the thousands), most rows are exact in the reference and need no
# rounding: as many units of precision of the largest value as this are known nowhere.
_UNITS_ALONE = 1.0
# Where float32 outputs have no float64 form, from that of the reference: by units of the size of nearly all
# elements, up to the tolerance, and no less than two float32 programs differ by.
_UNITS_APART, _LEAST_APART = 512.0, 64.0


@dataclass(frozen=True)
class Bounds:
    """When an output is right.

    An element is bad when it differs from the reference by more than ``atol + rtol * |reference|``;
    unless ``strict``, only when it is also further from float64 than allowed. An output is
    bad when its largest error against float64 is above ``ratio * (the reference's own) + floor``,
    where floor is ``floor + units * eps * (the largest magnitude)``.

    ``alone``: no tolerance applies, and each element has a bound of its own: ``ratio`` times the larger
    of the reference's error there and what rounding to float32 moves, plus ``floor``, plus ``units * eps *
    (the largest magnitude)`` or, where that is less, ``ratio * (the reference's own)``. In other outputs
    that are not ``strict``, an element may be off twice that larger one where this is more than the
    bound of the whole output; and all but a few elements are held to a bound of their own, in which
    nearly all elements, of which :class:`Bulk` knows, stand for the whole output.
    """

    atol: float
    rtol: float
    ratio: float
    floor: float
    units: float = 0.0
    strict: bool = False
    alone: bool = False

    @property
    def movable(self) -> bool:
        """Whether what rounding to float32 moves can make a difference."""
        return self.alone or not self.strict


def bounds_of(dtype: torch.dtype, tolerance: Tolerance | None) -> Bounds:
    """A problem package's own tolerance, or what a plain file's outputs of ``dtype`` are held to.

    Plain files: 1e-4 absolute and relative for float32, 1e-9 for float64, four units of
    precision for shorter dtypes; integers and booleans exactly.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return Bounds(0.0, 0.0, 0.0, 0.0, strict=True)
    if tolerance is not None:
        t, alone = tolerance, math.isinf(tolerance.atol)
        units = _UNITS_ALONE * t.oracle_ratio if alone else 0.0
        return Bounds(t.atol, t.rtol, t.oracle_ratio, t.oracle_floor, units, strict=True, alone=alone)
    eps = torch.finfo(dtype).eps
    width = "long" if eps < 1e-6 else "short"
    close = 1e-9 if eps < 1e-12 else max(1e-4, 4 * eps)
    return Bounds(close, close, _RATIO[width], 8 * eps if width == "long" else 0.0, _UNITS[width])


@dataclass(frozen=True)
class Known:
    """What the default trial found about an output: timed calls, on other content, are held to twice that."""

    own_error: float
    allowed: float
    bulk: Bulk | None


def timed_bounds(dtype: torch.dtype, tolerance: Tolerance | None, allowed: float) -> Bounds:
    """Bounds for timed calls, whose contents differ from the trial that ``allowed`` was found on."""
    bounds = bounds_of(dtype, tolerance)
    return replace(bounds, atol=bounds.atol + 2 * allowed)


def output_error(
    path: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    oracle: torch.Tensor | None,
    bounds: Bounds,
    *,
    movement: torch.Tensor | None = None,
    bulk: Bulk | None = None,
    known: Known | None = None,
) -> OutputError:
    """Every figure of one output; ``got`` and ``expected`` have one shape and dtype.

    ``oracle`` is the float64 result, ``movement`` what rounding to float32 moves each of its elements,
    ``bulk`` what :func:`bulk_of` says. Where what is allowed is ``known`` already (for a timed call),
    it is not found here.
    """
    shape, is_complex = tuple(expected.shape), expected.is_complex()
    dtype = str(expected.dtype).removeprefix("torch.")
    if got.is_complex():
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
        oracle = None if oracle is None else torch.view_as_real(oracle)
    got, expected = got.detach().reshape(-1), expected.detach().reshape(-1)
    oracle = None if oracle is None else oracle.detach().reshape(-1)
    graded: _Graded | None = None
    beyond: _Beyond | None = None
    if oracle is not None:
        graded = _whole(got, expected, oracle, bounds, known)
        if movement is not None and bounds.movable and got.numel():
            graded = _each(got, expected, oracle, movement.reshape(-1), bounds, graded)
        if known is not None:
            bulk = known.bulk
        elif bulk is None and not bounds.strict:
            bulk = bulk_of(expected, oracle)
        if bulk is not None and got.numel():
            beyond = _beyond(got, expected, oracle, bounds, graded, bulk, 1 if known is None else 2)
    atol = bounds.atol
    if oracle is None and not bounds.strict:
        # Where everything is small, an absolute tolerance would let zeros pass.
        atol = _atol_by_size(atol, expected)
    worst = _Worst()
    for part in parts_of(expected):
        near = None
        if oracle is not None and graded is not None and not bounds.strict:
            near = oracle[part], graded.allowed if graded.bounds is None else graded.bounds[part]
        worst.add(got[part], expected[part], near, atol, bounds.rtol, part.start)
    total = expected.numel()
    first = worst.first
    index_shape = (*shape, 2) if is_complex else shape
    element = None if graded is None else graded.element
    return OutputError(
        path=path,
        shape=shape,
        dtype=dtype,
        max_abs=worst.max_abs,
        mean_abs=worst.sum_abs / total if total else 0.0,
        max_rel=worst.max_rel,
        mean_rel=worst.sum_rel / total if total else 0.0,
        mismatched=worst.bad,
        total=total,
        atol=atol,
        rtol=bounds.rtol,
        first_bad=None if first is None else unravel(first, index_shape),
        got=None if first is None else float(got[first].item()),
        expected=None if first is None else float(expected[first].item()),
        oracle_error=None if graded is None else graded.error,
        reference_error=None if graded is None else graded.own_error,
        allowed_error=None if graded is None else graded.allowed,
        own_error_units=None if graded is None else _units(graded.error, graded.own_error),
        bound_at=None if element is None else unravel(element, index_shape),
        beyond=None if beyond is None else beyond.count,
        beyond_allowed=None if beyond is None else beyond.allowed,
        bulk_error=None if beyond is None else beyond.error,
    )


@dataclass(frozen=True)
class _Graded:
    """How far an output is off float64, the yardstick for it, and how far it may be.

    ``bounds`` are those of each element where they differ; then the figures are those of ``element``, and
    ``moved`` is what an element may be off for what rounding to float32 moves it.
    """

    error: float
    own_error: float
    allowed: float
    bounds: torch.Tensor | None = None
    element: int | None = None
    moved: torch.Tensor | None = None


@dataclass(frozen=True)
class _Beyond:
    """How many elements are further off float64 than ``error``, what an element near 0 may be; and may be."""

    count: int
    allowed: int
    error: float


def _whole(
    got: torch.Tensor, expected: torch.Tensor, oracle: torch.Tensor, bounds: Bounds, known: Known | None
) -> _Graded:
    """One bound for the whole output. All tensors have one dimension, here and below."""
    error = 0.0
    for part in parts_of(oracle):
        error = max(error, _off(got[part], expected[part], oracle[part]).max().item())
    if known is not None:
        # Products and recurrences differ in size by as much from draw to draw as their errors do.
        allowed = max(2 * known.allowed, _allowed(expected, oracle, 0.0, bounds))
        return _Graded(error, known.own_error, allowed)
    own_error = _own(expected, oracle)
    return _Graded(error, own_error, _allowed(expected, oracle, own_error, bounds))


def _off(got: torch.Tensor, expected: torch.Tensor, oracle: torch.Tensor) -> torch.Tensor:
    """How far each element is off float64; 0 where ``got`` is as infinitely far as the reference."""
    a, b, exact = got.to(torch.float64), expected.to(torch.float64), oracle.to(torch.float64)
    return distance(a, exact).masked_fill(distance(b, exact).isinf() & (distance(a, b) == 0), 0.0)


def _own(expected: torch.Tensor, oracle: torch.Tensor) -> float:
    """The largest error of the reference against float64, of those that are finite."""
    worst = 0.0
    for part in parts_of(oracle):
        own = distance(expected[part].to(torch.float64), oracle[part].to(torch.float64))
        worst = max(worst, own.masked_fill(own.isinf(), 0.0).max().item())
    return worst


def _beyond(
    got: torch.Tensor,
    expected: torch.Tensor,
    oracle: torch.Tensor,
    bounds: Bounds,
    graded: _Graded,
    bulk: Bulk,
    times: int,
) -> _Beyond:
    """Of a plain file's output: how many elements are beyond what nearly all are held to.

    ``times`` is 2 on other content than the ``bulk`` is known of, where the reference's own error is not.
    """
    eps = torch.finfo(expected.dtype).eps
    scale = bulk.scale if times == 1 else max(bulk.scale, scale_of(oracle))
    floor = min(bounds.floor, 1e-3 * scale)
    fixed = times * (bounds.ratio * bulk.own_error + floor + bounds.units * eps * scale)
    count = 0
    for part in parts_of(oracle):
        exact = oracle[part].to(torch.float64)
        allowed = fixed + times * bounds.units * eps * exact.abs().nan_to_num(nan=0.0, posinf=0.0)
        if times == 1:
            own = distance(expected[part].to(torch.float64), exact)
            allowed += bounds.ratio * own.masked_fill(own.isinf(), 0.0)
        if graded.moved is not None:
            allowed = torch.maximum(allowed, graded.moved[part])
        count += int((_off(got[part], expected[part], exact) > allowed).sum().item())
    return _Beyond(count, times * allowed_beyond(bulk, oracle.numel()), fixed)


def _each(
    got: torch.Tensor,
    expected: torch.Tensor,
    oracle: torch.Tensor,
    movement: torch.Tensor,
    bounds: Bounds,
    whole: _Graded,
) -> _Graded:
    """A bound for each element, from the larger of the reference's error there and ``movement``."""
    fixed = _allowed(expected, oracle, 0.0, bounds)
    # Where the reference is exact everywhere, rounding is no excuse.
    fixed = min(fixed, bounds.floor + bounds.ratio * whole.own_error)
    allowed, moved = torch.empty_like(oracle), torch.empty_like(oracle)
    most, element = -1.0, 0
    for part in parts_of(oracle):
        exact = oracle[part]
        own = distance(expected[part].to(torch.float64), exact)
        known = torch.maximum(own.masked_fill(own.isinf(), 0.0), movement[part])
        moved[part] = _MOVED_RATIO * known
        allowed[part] = bounds.ratio * known + fixed if bounds.alone else moved[part].clamp(min=whole.allowed)
        # Nothing of nothing, and infinity of infinity, are within bounds.
        used = (_off(got[part], expected[part], exact) / allowed[part]).nan_to_num(nan=0.0, posinf=math.inf)
        if used.max().item() > most:
            most, element = used.max().item(), part.start + int(used.argmax().item())
    here = slice(element, element + 1)
    error, limit = _off(got[here], expected[here], oracle[here]).item(), allowed[element].item()
    if bounds.alone:
        yardstick = (limit - bounds.floor) / bounds.ratio
    else:
        yardstick = limit / _MOVED_RATIO if limit > whole.allowed else whole.own_error
    return _Graded(error, yardstick, limit, allowed, element, moved)


class _Worst:
    """Figures gathered chunk by chunk."""

    def __init__(self) -> None:
        self.max_abs = self.max_rel = self.sum_abs = self.sum_rel = 0.0
        self.bad = 0
        self.first: int | None = None

    def add(
        self,
        got: torch.Tensor,
        expected: torch.Tensor,
        near: tuple[torch.Tensor, float | torch.Tensor] | None,
        atol: float,
        rtol: float,
        start: int,
    ) -> None:
        a, b = got.to(torch.float64), expected.to(torch.float64)
        difference, magnitude = distance(a, b), b.abs()
        relative = torch.where(magnitude > 0, difference / magnitude, torch.zeros_like(difference))
        relative = relative.nan_to_num(nan=math.inf, posinf=math.inf)
        self.max_abs = max(self.max_abs, difference.max().item())
        self.max_rel = max(self.max_rel, relative.max().item())
        self.sum_abs += difference.sum().item()
        self.sum_rel += relative.sum().item()
        close = (difference == 0) | ((difference <= atol + rtol * magnitude) & difference.isfinite())
        if not got.dtype.is_floating_point:
            close = got == expected  # float64 does not hold every int64
        if near is not None:
            close |= distance(a, near[0].to(torch.float64)) <= near[1]
        bad = ~close
        count = int(bad.sum().item())
        if count and self.first is None:
            self.first = start + int(bad.to(torch.uint8).argmax().item())
        self.bad += count


def _atol_by_size(atol: float, expected: torch.Tensor) -> float:
    """The absolute tolerance of a plain file's output that has no float64 form."""
    if expected.dtype not in (torch.float32, torch.complex64):
        return min(atol, 0.01 * _largest(expected))
    size = torch.finfo(torch.float32).eps * scale_of(expected)
    return max(min(atol, _UNITS_APART * size), _LEAST_APART * size)


def _allowed(expected: torch.Tensor, oracle: torch.Tensor, own_error: float, bounds: Bounds) -> float:
    if not expected.dtype.is_floating_point:
        return math.inf
    scale = _largest(oracle)
    floor = bounds.floor if bounds.strict else min(bounds.floor, 1e-3 * scale)
    return bounds.ratio * own_error + floor + bounds.units * torch.finfo(expected.dtype).eps * scale


def _largest(values: torch.Tensor) -> float:
    worst = 0.0
    for chosen in parts_of(values):
        part = values[chosen].to(torch.float64).abs()
        finite = part[part.isfinite()]
        worst = max(worst, finite.max().item() if finite.numel() else 0.0)
    return worst


def _units(error: float | None, own_error: float | None) -> float | None:
    if error is None or not own_error:
        return None
    return error / own_error
