"""How fast a problem's ``ModelNew`` is beside its peers, all in one interleaved run.

:func:`bench` says all there is about one shape, the reference included. :func:`bench_line`
is a line of a table over shapes of every size: the cold time alone, of what ends in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels.errors import first_line
from kernels.evaluate.check import default_case, on_device
from kernels.evaluate.correctness import compare, largest_error
from kernels.evaluate.environment import describe_environment
from kernels.evaluate.result import BenchResult, BenchRow, Lead, Timing
from kernels.evaluate.timing.cuda import Sampled, Timer
from kernels.evaluate.timing.host import once, time_host, time_once
from kernels.evaluate.timing.turns import cuda_tools, take_turns
from kernels.problem import Case, Problem

__all__ = ["DEFAULT_SHAPES", "bench", "bench_line", "case_of"]

# Kernel variants by name, each with what makes ``ModelNew`` run it.
Variants = Mapping[str, Callable[[], object]]

# The problem's own default, and a length at which the arithmetic outweighs the call.
DEFAULT_SHAPES: tuple[Mapping[str, int], ...] = ({}, {"seqlen": 2048, "head_dim": 64})

# What a call costs at least through torch: in place, and with an output to allocate and free.
BASELINES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x.add_(1), 10 floats": lambda x: x.add_(1),
    "x + 1, 10 floats": lambda x: x + 1,
}

# A call this long is many launches: its graph would take longer to record than to learn from.
_GRAPH_LIMIT_US = 50_000.0

# Input sets of different content that calls on CUDA go round, and the bytes they may take together.
_SETS = 4
_SETS_BYTES = 64 << 20

# Calls whose cost to the host makes one sample, and how long they may take together.
_HOST_CALLS = 20
_HOST_SAMPLE_US = 20_000.0

# The times of a row from which its operations a second are counted: the first that it has.
_RATED_BY = ("graph_cold", "eager_cold", "eager")

# Beyond this much work of a call, errors are measured on some of its rows: the first and the
# last of them, and as many in between.
_WHOLE_FLOPS = 20e9
_ROWS_EACH = 16

# A reference in loops that would take longer is not started, on any shape.
_REFERENCE_LIMIT_US = 60e6

# Lengths at which a route is run before a longer one is started.
_SHORTER = (256, 1024, 4096)
# The share of the GPU's memory that a route of the table may take: their graphs share it.
_MEMORY_SHARE = 4


def case_of(problem: Problem, changes: Mapping[str, int], dtype: str | None = None) -> Case:
    """The default case with ``changes`` to its shape; ``seqlen`` stands for every sequence length.

    Raises ``ValueError`` for a name the problem's shape does not have.
    """
    default = default_case(problem)
    shape = dict(default.shape)
    for name, value in changes.items():
        keys = [key for key in shape if key == name or (name == "seqlen" and key.startswith("seqlen_"))]
        if not keys:
            raise ValueError(
                f"{problem.name} has no {name!r} in its shape; it has: seqlen, {', '.join(shape)}"
            )
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
    inputs = _inputs(problem, case, device)
    too_slow_us = 10 * seconds * 1e6
    rows: dict[str, BenchRow] = {}
    routes: dict[str, _Route] = {}
    forecast = _Forecast(problem, case, device, _REFERENCE_LIMIT_US)
    with torch.no_grad():
        yardstick = _Yardstick(problem, case, inputs)
        for name, route in _routes(problem, device, compiled, variants, reference=True).items():
            call = route.on(inputs)
            try:
                reason = forecast.too_long(route) if name == "reference" else ""
                if reason:
                    rows[name] = BenchRow(name, note=reason, left_out=True)
                    continue
                route.select()
                result, microseconds = time_once(call, device)
                if microseconds >= too_slow_us:  # the first call may have compiled
                    result, microseconds = time_once(call, device)
                rows[name] = yardstick.judged(name, result)
            except Exception as failure:  # a route that this torch or device does not have is a finding
                rows[name] = _failed(name, failure)
                continue
            if microseconds < too_slow_us:
                routes[name] = route
            else:
                rows[name] = replace(rows[name], eager=once(microseconds), note="too slow to repeat: one run")
        forecast.forget()
        if device == "cuda":
            few = on_device([torch.zeros(10)], device)
            rows |= {name: BenchRow(name) for name in BASELINES}
            rows = _cuda_times(
                rows,
                _on_sets(problem, case, device, inputs, routes)
                | {name: _OnSets([_Route(function).on(few)]) for name, function in BASELINES.items()},
                seconds,
            )
        else:
            rows = _cpu_times(rows, routes, inputs, seconds)
    return _result(problem, case, device, rows, yardstick.words, command)


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
    limit_us = limit_seconds * 1e6
    rows: dict[str, BenchRow] = {}
    routes: dict[str, _Route] = {}
    words = "nothing: no route was started"
    forecast = _Forecast(problem, case, device, limit_us)
    with torch.no_grad():
        for name, route in _routes(problem, device, compiled, variants).items():
            try:
                reason = forecast.too_long(route)
            except Exception as failure:  # a route that this torch or device does not have is a finding
                rows[name] = _failed(name, failure)
                continue
            rows[name] = BenchRow(name, note=reason, left_out=bool(reason))
            if not reason:
                routes[name] = route
        forecast.forget()
        if routes:
            inputs = _inputs(problem, case, device)
            yardstick = _Yardstick(problem, case, inputs)
            words = yardstick.words
            once_us: dict[str, float] = {}
            for name, route in routes.items():
                rows[name], once_us[name] = _first_call(name, route, inputs, yardstick, device, limit_us)
                _release(device)
            routes = {name: route for name, route in routes.items() if not rows[name].note}
            if device == "cuda":
                rows = _cold_times(rows, _on_sets(problem, case, device, inputs, routes), once_us, seconds)
            else:
                rows = _cpu_times(rows, routes, inputs, seconds)
        _release(device)
    result = _result(problem, case, device, rows, words, command)
    accurate, fastest = (_lead(result.rows, only) for only in (True, False))
    return replace(result, in_table=True, lead_over_accurate=accurate, lead_over_fastest=fastest)


def _result(
    problem: Problem,
    case: Case,
    device: str,
    rows: Mapping[str, BenchRow],
    checked: str,
    command: Sequence[str],
) -> BenchResult:
    flops = problem.flops(case.shape)
    return BenchResult(
        problem=problem.name,
        case=case.name,
        shape=dict(case.shape),
        dtype=case.dtype,
        flops=flops,
        least_bytes=problem.least_bytes(case.shape, case.dtype),
        rows=tuple(_rated(row, flops) for row in rows.values()),
        environment=describe_environment(device, command),
        checked=checked,
    )


def _rated(row: BenchRow, flops: int) -> BenchRow:
    """``row`` with its operations a second, where it computes the problem and was timed."""
    for kind in _RATED_BY:
        timing = getattr(row, kind)
        if timing is not None and row.error is not None:
            return replace(row, tflops=flops / timing.median_us / 1e6, tflops_from=kind)
    return row


def _lead(rows: Sequence[BenchRow], accurate: bool) -> Lead | None:
    """How much faster the first ``ModelNew`` row is than the fastest peer, or the fastest accurate one."""
    timed = [(row, getattr(row, row.tflops_from).median_us) for row in rows if row.tflops_from]
    ours = next((time_us for row, time_us in timed if _is_ours(row.name)), None)
    peers = [
        (time_us, row.name)
        for row, time_us in timed
        if not _is_ours(row.name) and (row.accurate or not accurate)
    ]
    if ours is None or not peers:
        return None
    time_us, name = min(peers)
    return Lead(name, time_us / ours)


def _is_ours(name: str) -> bool:
    return name == "ModelNew" or name.startswith("ModelNew, ")


# -- what is timed -----------------------------------------------------------------------------


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class _Route:
    """A way to the result; ``select`` is what makes it the one that runs, untimed, before it is called."""

    function: Callable[..., Any]
    select: Callable[[], object] = _nothing

    def on(self, inputs: Sequence[Any]) -> Callable[[], Any]:
        """A call of the route with ``inputs``."""
        return lambda: self.function(*inputs)


@dataclass(frozen=True)
class _OnSets:
    """A route's calls, one for each input set."""

    calls: Sequence[Callable[[], Any]]
    select: Callable[[], object] = _nothing


def _routes(
    problem: Problem, device: str, compiled: bool, variants: Variants | None, *, reference: bool = False
) -> dict[str, _Route]:
    init = problem.get_init_inputs()
    model_new = problem.model_new(*init).to(device)
    found = {f"ModelNew, {name}": _Route(model_new, select) for name, select in (variants or {}).items()}
    if not found:
        found["ModelNew"] = _Route(model_new)
    if reference:
        found["reference"] = _Route(problem.model(*init).to(device))
    peers = dict(problem.peers(device)) if problem.peers is not None else {}
    if compiled:
        if "vectorised" not in peers:
            raise ValueError(f"{problem.name} names no peer 'vectorised', which is what --compile compiles")
        peers["torch.compile, vectorised"] = torch.compile(peers["vectorised"], fullgraph=True)
    return found | {name: _Route(peer) for name, peer in peers.items()}


def _inputs(problem: Problem, case: Case, device: str, seed: int | None = None) -> list[Any]:
    """The inputs of ``case`` on ``device``; a ``seed`` in place of the case's own gives other values."""
    options = dict(case.options) if seed is None else {**case.options, "seed": seed}
    return on_device(problem.make_inputs(**case.shape, dtype=case.dtype, **options), device)


def _on_sets(
    problem: Problem, case: Case, device: str, inputs: list[Any], routes: Mapping[str, _Route]
) -> dict[str, _OnSets]:
    """The calls of ``routes`` on ``inputs`` and, where they are small, on further sets of the same shape."""
    sets = [inputs, *(_inputs(problem, case, device, seed) for seed in range(1, _set_count(inputs)))]
    return {name: _OnSets([route.on(each) for each in sets], route.select) for name, route in routes.items()}


def _set_count(inputs: Sequence[Any]) -> int:
    """How many input sets are made: large ones push one another out of the L2 cache as they are."""
    size = sum(x.numel() * x.element_size() for x in inputs if isinstance(x, torch.Tensor))
    return max(1, min(_SETS, _SETS_BYTES // max(size, 1)))


# -- is it right -------------------------------------------------------------------------------


class _Yardstick:
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


# -- how long it will take ---------------------------------------------------------------------


class _Forecast:
    """How long a call of ``case`` lasts, told from the same case with shorter sequences."""

    def __init__(self, problem: Problem, case: Case, device: str, limit_us: float) -> None:
        self._problem = problem
        self._device = device
        self._limit_us = limit_us
        self._flops = problem.flops(case.shape)
        self._shorter = [
            _shortened(case, length)
            for length in _SHORTER
            if length < max(_lengths(case).values(), default=0)
        ]
        self._made: dict[str, list[Any]] = {}

    def too_long(self, route: _Route) -> str:
        """Why ``route`` is not started on the case, or ``""``. Raises what it raises on a shorter one."""
        for number, case in enumerate(self._shorter):
            took_us = self._took_us(route, case)
            done = max(self._problem.flops(case.shape), 1)
            expected_us = took_us * self._flops / done
            if expected_us <= self._limit_us:
                return ""
            following = self._shorter[number + 1 : number + 2]
            if not following or took_us * self._problem.flops(following[0].shape) / done > self._limit_us:
                return (
                    f"about {expected_us / 1e6:.3g} s a call (by {took_us / 1e6:.2g} s at length "
                    f"{max(_lengths(case).values())}), over {self._limit_us / 1e6:g} s"
                )
        return ""

    def forget(self) -> None:
        """Let go of the inputs that were made."""
        self._made.clear()
        _release(self._device)

    def _took_us(self, route: _Route, case: Case) -> float:
        if case.name not in self._made:
            self._made[case.name] = _inputs(self._problem, case, self._device)
        call = route.on(self._made[case.name])
        route.select()
        # The first call may build, compile or tune.
        return min(time_once(call, self._device)[1] for _ in range(2))


def _lengths(case: Case) -> dict[str, int]:
    return {
        name: value for name, value in case.shape.items() if name == "seqlen" or name.startswith("seqlen_")
    }


def _shortened(case: Case, length: int) -> Case:
    shape = {**case.shape, **{name: min(value, length) for name, value in _lengths(case).items()}}
    return replace(case, name=f"{case.name}, length {length}", shape=shape)


def _first_call(
    name: str, route: _Route, inputs: Sequence[Any], yardstick: _Yardstick, device: str, limit_us: float
) -> tuple[BenchRow, float]:
    """The row of a route after its first call, and the microseconds; a row that is not timed has a note."""
    call = route.on(inputs)
    try:
        route.select()
        before = _memory_before(device)
        result, took_us = time_once(call, device)
        peak_bytes = _memory_peak(device) - before
        row = yardstick.judged(name, result)
        del result
        if took_us > min(limit_us, _GRAPH_LIMIT_US):  # the first call may have compiled
            took_us = time_once(call, device)[1]
    except Exception as failure:  # a route that this torch or device does not have is a finding
        return _failed(name, failure), 0.0
    if took_us > limit_us:
        reason = f"{took_us / 1e6:.3g} s a call, over {limit_us / 1e6:g} s"
        return replace(row, note=reason, left_out=True), took_us
    if peak_bytes * _MEMORY_SHARE > _memory_total(device):
        reason = f"{peak_bytes / 1e9:.3g} GB a call, over a quarter of the GPU's memory"
        return replace(row, note=reason, left_out=True), took_us
    return row, took_us


def _failed(name: str, failure: Exception) -> BenchRow:
    """The row of a route that raised; what does not fit into the GPU's memory is left out."""
    return BenchRow(name, note=first_line(failure), left_out=isinstance(failure, torch.OutOfMemoryError))


def _memory_before(device: str) -> int:
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _memory_peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def _memory_total(device: str) -> float:
    return torch.cuda.mem_get_info()[1] if device == "cuda" else math.inf


def _release(device: str) -> None:
    """Give what torch's allocator keeps back to the GPU, for graphs have memory of their own."""
    if device == "cuda":
        torch.cuda.empty_cache()


# -- times -------------------------------------------------------------------------------------


def _cpu_times(
    rows: Mapping[str, BenchRow], routes: Mapping[str, _Route], inputs: Sequence[Any], seconds: float
) -> dict[str, BenchRow]:
    """``rows`` with the time of a call of ``routes``."""
    timings = time_host(
        {name: route.on(inputs) for name, route in routes.items()},
        seconds=seconds,
        prepare={name: route.select for name, route in routes.items()},
    )
    return {**rows, **{name: replace(rows[name], eager=timing) for name, timing in timings.items()}}


@dataclass
class _Timers:
    """The timers of several routes on the current CUDA device, which take turns."""

    routes: Mapping[str, _OnSets]
    seconds: float
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tools = cuda_tools(torch.cuda.current_device())
        self._timers = {name: Timer(route.calls, tools=self._tools) for name, route in self.routes.items()}

    def take(self, names: Iterable[str], take: Callable[[str, Timer, int], Sampled]) -> dict[str, Timing]:
        """The timings of ``names``; the reason of each that has none goes to the notes."""

        def batch(name: str, samples: int) -> Sampled:
            self.routes[name].select()
            return take(name, self._timers[name], samples)

        timings, reasons = take_turns(list(names), batch, seconds=self.seconds, clock_ns=self._tools.clock_ns)
        self.notes |= reasons
        return timings

    def eager(self, names: Iterable[str], cache: str = "warm") -> dict[str, Timing]:
        return self.take(names, lambda _, timer, n: timer.eager(n, cache=cache, seconds=self.seconds))

    def graph(self, names: Iterable[str], cache: str = "warm") -> dict[str, Timing]:
        return self.take(names, lambda _, timer, n: timer.graph(n, cache=cache, seconds=self.seconds))

    def host(self, calls: Mapping[str, int]) -> dict[str, Timing]:
        """What a call costs the host, over so many calls in a row."""
        return self.take(calls, lambda name, timer, n: timer.enqueue(n, calls[name], seconds=self.seconds))


def _cuda_times(
    rows: Mapping[str, BenchRow], routes: Mapping[str, _OnSets], seconds: float
) -> dict[str, BenchRow]:
    """``rows`` with all times of ``routes``; a cold eager call stands in where there is no graph."""
    timers = _Timers(routes, seconds)
    eager = timers.eager(routes)
    host = timers.host(
        {
            name: max(1, min(_HOST_CALLS, int(_HOST_SAMPLE_US / timing.median_us)))
            for name, timing in eager.items()
        }
    )
    graph = timers.graph(_graphable(eager, timers.notes))
    graph_cold = timers.graph(graph, "cold")
    eager_cold = timers.eager([name for name in eager if name not in graph_cold], "cold")
    return {
        name: replace(
            row,
            eager=eager.get(name, row.eager),
            eager_cold=eager_cold.get(name),
            graph=graph.get(name),
            graph_cold=graph_cold.get(name),
            host=host.get(name),
            note=timers.notes.get(name, row.note),
        )
        for name, row in rows.items()
    }


def _cold_times(
    rows: Mapping[str, BenchRow],
    routes: Mapping[str, _OnSets],
    once_us: Mapping[str, float],
    seconds: float,
) -> dict[str, BenchRow]:
    """``rows`` with the cold time of ``routes``: a graph replay, else an eager call."""
    timers = _Timers(routes, seconds)
    long = [name for name in routes if once_us[name] > _GRAPH_LIMIT_US]
    graph_cold = timers.graph([name for name in routes if name not in long], "cold")
    eager_cold = timers.eager([name for name in routes if name not in graph_cold], "cold")
    return {
        name: replace(
            row,
            eager_cold=eager_cold.get(name),
            graph_cold=graph_cold.get(name),
            note=timers.notes.get(name, row.note),
        )
        for name, row in rows.items()
    }


def _graphable(eager: Mapping[str, Timing], notes: dict[str, str]) -> list[str]:
    """The calls that are short enough to be recorded; the others are noted."""
    long = [name for name, timing in eager.items() if timing.median_us > _GRAPH_LIMIT_US]
    notes |= dict.fromkeys(long, "no graph: over 50 ms a call")
    return [name for name in eager if name not in long]
