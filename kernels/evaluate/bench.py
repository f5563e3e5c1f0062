"""How fast a problem's ``ModelNew`` is beside its peers, all in one interleaved run.

:func:`bench` says all there is about one shape, the reference included. :func:`bench_line`
is a line of a table over shapes of every size: the cold time alone, of what ends in time. Both are
made of a :class:`Run`: a case with its inputs, its right answers and its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.evaluate.bench_parts.forecast import Forecast
from kernels.evaluate.bench_parts.routes import OnSets, Route, Variants, rated, routes_of
from kernels.evaluate.bench_parts.shape import BASELINES, every_time
from kernels.evaluate.bench_parts.table import line
from kernels.evaluate.check import default_case, on_device
from kernels.evaluate.correctness import compare, largest_error
from kernels.evaluate.environment import describe_environment
from kernels.evaluate.precision import kept, lowered
from kernels.evaluate.result import BenchResult, BenchRow
from kernels.evaluate.timing.cuda_tools import CudaTools
from kernels.evaluate.timing.turns import cuda_tools
from kernels.problem import Case, Problem

__all__ = ["BASELINES", "DEFAULT_SHAPES", "Run", "Yardstick", "bench", "bench_line", "case_of"]

# The problem's own default, and a length at which the arithmetic outweighs the call.
DEFAULT_SHAPES: tuple[Mapping[str, int], ...] = ({}, {"seqlen": 2048, "head_dim": 64})

# Input sets of different content that calls on CUDA go round, and the bytes they may take together.
_SETS = 4
_SETS_BYTES = 64 << 20

# Beyond this much work of a call, errors are measured on some of its rows: the first and the
# last of them, and as many in between.
_WHOLE_FLOPS = 20e9
_ROWS_EACH = 16


def case_of(problem: Problem, changes: Mapping[str, int], dtype: str | None = None) -> Case:
    """The default case with ``changes`` to its shape; ``seqlen`` stands for every sequence length.

    Raises ``ValueError`` for a name the problem's shape does not have.
    """
    default = default_case(problem)
    shape = dict(default.shape)
    for name, value in changes.items():
        keys = [key for key in shape if key == name or (name == "seqlen" and key.startswith("seqlen_"))]
        if not keys:
            there = ", ".join(dict.fromkeys(["seqlen", *shape]))
            raise ValueError(f"{problem.name} has no {name!r} in its shape; it has: {there}")
        shape.update(dict.fromkeys(keys, value))
    if not changes and dtype in (None, default.dtype):
        return default
    dtype = dtype or default.dtype
    tolerance = next((case.tolerance for case in problem.cases if case.dtype == dtype), default.tolerance)
    return Case("chosen", "asked for", shape, dtype, tolerance=tolerance)


def bench(
    problem: Problem,
    case: Case,
    device: str,
    *,
    seconds: float = 0.5,
    compiled: bool = False,
    variants: Variants | None = None,
    command: Sequence[str] = (),
) -> BenchResult:
    """Times ``ModelNew``, the reference and the problem's peers on one input.

    ``seconds`` is spent on each call for each kind of time. ``compiled`` adds
    torch.compile of the peer called ``vectorised``. ``variants`` are names of kernels, each
    with what makes ``ModelNew`` run it from then on: then each has a row. The result is checked
    before it is timed: each row has its largest difference from float64. A reference that
    would take over a minute, told from shorter sequences, is not started.

    On CUDA each call has a :class:`Timer` and goes round up to 4 input sets of different
    content (fewer where they would take more than 64 MiB); see :class:`BenchRow` for the times.
    """
    with kept():
        return every_time(Run(problem, case, device, seconds, compiled, variants, command, lowered(device)()))


def bench_line(
    problem: Problem,
    case: Case,
    device: str,
    *,
    seconds: float = 0.3,
    limit_seconds: float = 1.0,
    compiled: bool = False,
    variants: Variants | None = None,
    command: Sequence[str] = (),
) -> BenchResult:
    """Times ``ModelNew`` and the problem's peers on one case of its table, with cold L2 on CUDA.

    Never the reference, which is a loop. A route is first run on the same case at lengths 256,
    1024 and 4096, as far as it takes to tell how long a call of the case will last; the
    work, :attr:`Problem.flops`, gives the proportion. One that would take longer than
    ``limit_seconds``, needs more than a quarter of the GPU's memory, or runs out of it is
    left out, with the reason in its row. ``seconds`` is spent on the samples of each other
    one: a graph replay after an L2 flush where a graph holds the call, else an eager call
    after one; on the CPU a call.
    """
    run = Run(problem, case, device, seconds, compiled, variants, command, lowered(device)())
    with kept():
        return line(run, limit_seconds)


@dataclass(frozen=True)
class Run:
    """One case on one device, and what is timed on it."""

    problem: Problem
    case: Case
    device: str
    seconds: float
    compiled: bool
    variants: Variants | None
    command: Sequence[str]
    # What float32 products may be computed in, where that is less.
    precision: str = ""

    def routes(self, *, reference: bool = False) -> dict[str, Route]:
        """The routes to the result by name, ``ModelNew`` first."""
        return routes_of(self.problem, self.device, self.compiled, self.variants, reference=reference)

    def forecast(self, limit_us: float) -> Forecast:
        """What tells the routes that would take longer than ``limit_us`` a call."""
        return Forecast(self.problem, self.case, self.device, self._inputs_of, limit_us)

    def inputs(self, seed: int | None = None) -> list[Any]:
        """The inputs on the device; a ``seed`` in place of the case's own gives other values."""
        return self._inputs_of(self.case, seed)

    def _inputs_of(self, case: Case, seed: int | None = None) -> list[Any]:
        options = dict(case.options) if seed is None else {**case.options, "seed": seed}
        return self.placed(self.problem.make_inputs(**case.shape, dtype=case.dtype, **options))

    def placed(self, values: list[Any]) -> list[Any]:
        """``values`` on the device."""
        return on_device(values, self.device)

    def on_sets(self, inputs: list[Any], routes: Mapping[str, Route]) -> dict[str, OnSets]:
        """The calls of ``routes`` on ``inputs`` and, where they are small, on further sets of their shape."""
        sets = [inputs, *(self.inputs(seed) for seed in range(1, _set_count(inputs)))]
        return {
            name: OnSets([route.on(each) for each in sets], route.select) for name, route in routes.items()
        }

    def yardstick(self, inputs: Sequence[Any]) -> Yardstick:
        """The right answer to ``inputs``."""
        return Yardstick(self.problem, self.case, inputs)

    def tools(self) -> CudaTools:
        """The clock and events of the current CUDA device."""
        return cuda_tools(torch.cuda.current_device())

    def result(self, rows: Mapping[str, BenchRow], checked: str) -> BenchResult:
        """``rows`` with their operations a second, and all that is to be said beside them."""
        problem, case = self.problem, self.case
        flops = problem.flops(case.shape)
        return BenchResult(
            problem=problem.name,
            case=case.name,
            shape=dict(case.shape),
            dtype=case.dtype,
            flops=flops,
            least_bytes=problem.least_bytes(case.shape, case.dtype),
            rows=tuple(rated(row, flops) for row in rows.values()),
            environment=describe_environment(self.device, self.command),
            checked=checked,
            precision=self.precision,
        )


def _set_count(inputs: Sequence[Any]) -> int:
    """How many input sets are made: large ones push one another out of the L2 cache as they are."""
    size = sum(x.numel() * x.element_size() for x in inputs if isinstance(x, torch.Tensor))
    return max(1, min(_SETS, _SETS_BYTES // max(size, 1)))


class Yardstick:
    """The float64 answer to ``inputs``, or some rows of it where all would take too long.

    ``words`` says which elements it holds.
    """

    def __init__(self, problem: Problem, case: Case, inputs: Sequence[Any]) -> None:
        self._tolerance = case.tolerance
        length = case.shape.get("seqlen_q", case.shape.get("seqlen", 0))
        self._rows: list[int] | None = None
        if problem.oracle_rows is None or not length or problem.flops(case.shape) <= _WHOLE_FLOPS:
            self._oracle = problem.oracle(*inputs)
            self.words = "every element"
            return
        self._rows = _checked_rows(length)
        self._oracle = problem.oracle_rows(self._rows, *inputs)
        self.words = (
            f"{len(self._rows)} of {length} rows of every head and batch entry: the first and last "
            f"{_ROWS_EACH}, and {_ROWS_EACH} from the whole length"
        )

    def judged(self, name: str, result: torch.Tensor) -> BenchRow:
        """The row of a route that returned ``result``, with its error."""
        part = result if self._rows is None else result[:, self._rows]
        accurate = compare(part.double(), self._oracle, self._tolerance).passed
        return BenchRow(name, error=largest_error(part, self._oracle), accurate=accurate)


def _checked_rows(length: int) -> list[int]:
    """Some of ``length`` rows: early ones see few keys and have the largest errors, late ones see most."""
    ends = [*range(min(_ROWS_EACH, length)), *range(max(length - _ROWS_EACH, 0), length)]
    return sorted({*ends, *(length * part // _ROWS_EACH for part in range(_ROWS_EACH))})
