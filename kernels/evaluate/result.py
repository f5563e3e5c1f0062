"""What a check or a measurement found, as plain frozen data.

Times are microseconds. Every class turns into JSON through :func:`as_json`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BenchResult",
    "BenchRow",
    "CheckRow",
    "Comparison",
    "Environment",
    "Lead",
    "OracleComparison",
    "StartupResult",
    "StartupRow",
    "Timing",
    "as_json",
]


@dataclass(frozen=True)
class Comparison:
    """How far ``got`` is from ``expected``, element by element.

    ``max_rel`` is the largest ``|got - expected| / |expected|`` where expected is
    not zero. ``first_bad`` is the index of the first element out of tolerance, in
    row-major order, with both values; None when there is none.
    """

    passed: bool
    reason: str
    max_abs: float
    max_rel: float
    mismatched: int
    total: int
    first_bad: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None


@dataclass(frozen=True)
class OracleComparison:
    """The largest error against float64, beside the reference's own."""

    passed: bool
    reason: str
    error: float
    reference_error: float
    allowed: float


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median over ``samples`` and the quartiles around it.

    Each sample is the mean over ``calls`` calls in a row.
    """

    median_us: float
    low_us: float
    high_us: float
    samples: int
    calls: int


@dataclass(frozen=True)
class CheckRow:
    """One input a problem was checked on. ``reason`` is empty when it passed.

    A comparison is None when the call failed before there was anything to compare.
    """

    problem: str
    device: str
    variant: str
    case: str
    why: str
    shape: Mapping[str, int]
    dtype: str
    passed: bool
    reason: str
    against_reference: Comparison | None = None
    against_oracle: OracleComparison | None = None
    time: Timing | None = None
    reference_time: Timing | None = None


@dataclass(frozen=True)
class Environment:
    """Where and when a measurement was made. ``driver`` and ``cuda`` are empty on the CPU."""

    device: str
    driver: str
    cuda: str
    torch: str
    python: str
    threads: int
    date: str
    command: str


@dataclass(frozen=True)
class BenchRow:
    """One way to compute the result, timed in the same interleaved run as its neighbours.

    ``eager`` is the time between results of back-to-back calls (on the CPU: of a call),
    ``graph`` that of a CUDA graph replay, both with the L2 cache as the calls leave it;
    ``graph_cold`` a replay after the L2 was overwritten, ``eager_cold`` a call on an idle
    GPU likewise, taken where no graph holds the call; ``host`` what one call costs the
    calling thread. A time that could not be taken is None, and ``note`` says why.
    ``error`` is the largest difference from float64, and ``accurate`` says whether every
    element that was checked lies within the case's ``atol + rtol * |float64|``. ``tflops``
    is 1e12 floating-point operations a second by the time that ``tflops_from`` names.
    ``left_out``: not timed, because a call takes too long or too much memory; ``note`` says how much.
    """

    name: str
    error: float | None = None
    eager: Timing | None = None
    graph: Timing | None = None
    host: Timing | None = None
    note: str = ""
    eager_cold: Timing | None = None
    graph_cold: Timing | None = None
    tflops: float | None = None
    tflops_from: str = ""
    accurate: bool | None = None
    left_out: bool = False


@dataclass(frozen=True)
class Lead:
    """``ratio`` times as fast as ``peer``; below 1 it is the peer that is faster."""

    peer: str
    ratio: float


@dataclass(frozen=True)
class BenchResult:
    """One problem on one shape. ``flops`` and ``least_bytes`` are of one call.

    ``checked`` says which elements ``error`` and ``accurate`` of the rows are about.
    ``precision`` is what torch allowed float32 products to be computed in, "" for float32 alone.
    ``in_table``: a line of the table, with the cold time alone; then the leads are those of the
    first ``ModelNew`` row over the fastest accurate peer and over the fastest of all peers.
    """

    problem: str
    case: str
    shape: Mapping[str, int]
    dtype: str
    flops: int
    least_bytes: int
    rows: tuple[BenchRow, ...]
    environment: Environment
    checked: str = ""
    in_table: bool = False
    lead_over_accurate: Lead | None = None
    lead_over_fastest: Lead | None = None
    precision: str = ""


@dataclass(frozen=True)
class StartupRow:
    """Seconds from ``import torch`` done to the first result, over fresh processes.

    ``samples`` are all of them, in the order they ran.
    """

    name: str
    seconds: float
    samples: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class StartupResult:
    """What the first call costs: cold, warm, and the way it is usually done."""

    problem: str
    what: str
    rows: tuple[StartupRow, ...]
    environment: Environment


def as_json(result: Any) -> Any:
    """``result`` as what :mod:`json` writes; numbers JSON has no word for become strings."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: as_json(getattr(result, field.name)) for field in dataclasses.fields(result)}
    if isinstance(result, Mapping):
        return {str(key): as_json(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [as_json(value) for value in result]
    if isinstance(result, float) and not math.isfinite(result):
        return str(result)
    return result
