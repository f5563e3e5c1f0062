"""Is a package's result right: against the reference, and against float64.

Two questions, because either alone can mislead. Against the reference a fixed tolerance holds; where
the reference itself is far off (large logits, short dtypes), its own error against float64 is the yardstick.
"""

from __future__ import annotations

import math

import torch

from kernels.evaluate.elements import distance, parts_of, unravel
from kernels.evaluate.result import Comparison, OracleComparison
from kernels.problem import Tolerance

__all__ = ["compare", "compare_with_oracle", "largest_error"]


def compare(got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> Comparison:
    """Whether ``|got - expected| <= atol + rtol * |expected|`` everywhere.

    NaN agrees with NaN and an infinity with itself; against anything else they are
    infinitely far off. Shape, dtype and device must agree too. Any dtype a float64
    can hold; the tensors are not modified.
    """
    total = expected.numel()
    for what in ("shape", "dtype", "device"):
        ours, theirs = getattr(got, what), getattr(expected, what)
        if ours != theirs:
            ours, theirs = (tuple(ours), tuple(theirs)) if what == "shape" else (ours, theirs)
            reason = f"{what} is {ours}, the reference's is {theirs}"
            return Comparison(False, reason, math.inf, math.inf, total, total)

    max_abs = max_rel = 0.0
    mismatched = 0
    first: int | None = None
    got_flat, expected_flat = got.detach().reshape(-1), expected.detach().reshape(-1)
    for part in parts_of(expected_flat):
        a, b = got_flat[part].to(torch.float64), expected_flat[part].to(torch.float64)
        difference = distance(a, b)
        magnitude = b.abs()
        max_abs = max(max_abs, difference.max().item())
        relative = torch.where(magnitude > 0, difference / magnitude, torch.zeros_like(difference))
        # An infinite difference from an infinite value divides to NaN: still infinitely far.
        max_rel = max(max_rel, relative.nan_to_num(nan=math.inf, posinf=math.inf).max().item())
        # A distance of 0 is close whatever the bound, which beside NaN and inf is no number.
        close = (difference == 0) | (difference <= tolerance.atol + tolerance.rtol * magnitude)
        bad = ~(close & difference.isfinite())
        count = int(bad.sum().item())
        if count and first is None:
            first = part.start + int(bad.to(torch.uint8).argmax().item())
        mismatched += count

    if first is None:
        return Comparison(True, "", max_abs, max_rel, 0, total)
    index = unravel(first, tuple(expected.shape))
    a_value, b_value = got_flat[first].item(), expected_flat[first].item()
    reason = (
        f"{mismatched} of {total} elements differ by more than "
        f"{tolerance.atol:g} + {tolerance.rtol:g}*|reference|; "
        f"the first at {index}: {a_value:.9g}, the reference has {b_value:.9g}; "
        f"the largest difference is {max_abs:.3g}"
    )
    return Comparison(False, reason, max_abs, max_rel, mismatched, total, index, a_value, b_value)


def compare_with_oracle(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, tolerance: Tolerance
) -> OracleComparison:
    """Whether the error against float64 is within ``oracle_ratio`` times the reference's own, plus the floor.

    ``oracle`` is float64; ``got`` and ``reference`` have its shape and any dtype.
    """
    error = largest_error(got, oracle)
    reference_error = largest_error(reference, oracle)
    allowed = tolerance.oracle_ratio * reference_error + tolerance.oracle_floor
    if error <= allowed:
        return OracleComparison(True, "", error, reference_error, allowed)
    reason = (
        f"the largest error against float64 is {error:.3g}; the reference's is {reference_error:.3g}, "
        f"which allows {allowed:.3g}"
    )
    return OracleComparison(False, reason, error, reference_error, allowed)


def largest_error(got: torch.Tensor, oracle: torch.Tensor) -> float:
    """The largest ``|got - oracle|``, in float64; 0.0 when empty, inf when only one of a pair is finite."""
    if got.shape != oracle.shape:
        return math.inf
    worst = 0.0
    got_flat, oracle_flat = got.detach().reshape(-1), oracle.detach().reshape(-1)
    for part in parts_of(oracle_flat):
        a = got_flat[part].to(oracle.device, torch.float64)
        b = oracle_flat[part].to(torch.float64)
        worst = max(worst, distance(a, b).max().item())
    return worst
