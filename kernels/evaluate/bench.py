"""How fast a problem's ``ModelNew`` is beside its peers, all in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kernels.errors import first_line
from kernels.evaluate.check import default_case, on_device
from kernels.evaluate.correctness import largest_error
from kernels.evaluate.environment import describe_environment
from kernels.evaluate.result import BenchResult, BenchRow, Timing
from kernels.evaluate.timing.cuda import Sampled, Timer
from kernels.evaluate.timing.host import once, time_host, time_once
from kernels.evaluate.timing.turns import cuda_tools, take_turns
from kernels.problem import Case, Problem

__all__ = ["DEFAULT_SHAPES", "bench", "case_of"]

Take = Callable[[str, int], Sampled]

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
    return Case("chosen", "asked for", shape, dtype or default.dtype)


def bench(
    problem: Problem,
    case: Case,
    device: str,
    *,
    seconds: float = 0.5,
    compiled: bool = False,
    command: Sequence[str] = (),
) -> BenchResult:
    """Times ``ModelNew``, the reference and the problem's peers on one input.

    ``seconds`` is spent on each call for each kind of time. ``compiled`` adds
    torch.compile of the peer called ``vectorised``. The result is checked before it
    is timed: each row has its largest difference from float64.

    On CUDA each call has a :class:`Timer` and goes round up to 4 input sets of different
    content (fewer where they would take more than 64 MiB); see :class:`BenchRow` for the times.
    """
    sets = [_inputs(problem, case, device, seed=None)]
    inputs = sets[0]
    too_slow_us = 10 * seconds * 1e6
    rows: dict[str, BenchRow] = {}
    routes: dict[str, Callable[..., Any]] = {}
    with torch.no_grad():
        oracle = problem.oracle(*inputs)
        for name, function in _competitors(problem, device, compiled).items():
            call = _bind(function, inputs)
            try:
                result, microseconds = time_once(call, device)
                if microseconds >= too_slow_us:  # the first call may have compiled
                    result, microseconds = time_once(call, device)
            except Exception as failure:  # a route that this torch or device does not have is a finding
                rows[name] = BenchRow(name, note=first_line(failure))
                continue
            rows[name] = BenchRow(name, error=largest_error(result, oracle))
            if microseconds < too_slow_us:
                routes[name] = function
            else:
                rows[name] = replace(rows[name], eager=once(microseconds), note="too slow to repeat: one run")
        if device == "cuda":
            sets += [_inputs(problem, case, device, seed) for seed in range(1, _set_count(inputs))]
            calls = {name: [_bind(function, each) for each in sets] for name, function in routes.items()}
            few = on_device([torch.zeros(10)], device)
            for name, function in BASELINES.items():
                rows[name], calls[name] = BenchRow(name), [_bind(function, few)]
            rows = _cuda_times(rows, calls, seconds)
        else:
            calls = {name: [_bind(function, inputs)] for name, function in routes.items()}
            for name, timing in time_host({n: call for n, (call,) in calls.items()}, seconds=seconds).items():
                rows[name] = replace(rows[name], eager=timing)
    return BenchResult(
        problem=problem.name,
        case=case.name,
        shape=dict(case.shape),
        dtype=case.dtype,
        flops=problem.flops(case.shape),
        least_bytes=problem.least_bytes(case.shape, case.dtype),
        rows=tuple(_rated(row, problem.flops(case.shape)) for row in rows.values()),
        environment=describe_environment(device, command),
    )


def _competitors(problem: Problem, device: str, compiled: bool) -> dict[str, Callable[..., Any]]:
    init = problem.get_init_inputs()
    found: dict[str, Callable[..., Any]] = {
        "ModelNew": problem.model_new(*init).to(device),
        "reference": problem.model(*init).to(device),
    }
    peers = dict(problem.peers(device)) if problem.peers is not None else {}
    if compiled:
        if "vectorised" not in peers:
            raise ValueError(f"{problem.name} names no peer 'vectorised', which is what --compile compiles")
        peers["torch.compile, vectorised"] = torch.compile(peers["vectorised"], fullgraph=True)
    return found | peers


def _inputs(problem: Problem, case: Case, device: str, seed: int | None) -> list[Any]:
    """The inputs of ``case`` on ``device``; a ``seed`` in place of the case's own gives other values."""
    options = dict(case.options) if seed is None else {**case.options, "seed": seed}
    return on_device(problem.make_inputs(**case.shape, dtype=case.dtype, **options), device)


def _set_count(inputs: Sequence[Any]) -> int:
    """How many input sets are made: large ones push one another out of the L2 cache as they are."""
    size = sum(x.numel() * x.element_size() for x in inputs if isinstance(x, torch.Tensor))
    return max(1, min(_SETS, _SETS_BYTES // max(size, 1)))


def _cuda_times(
    rows: Mapping[str, BenchRow], calls: Mapping[str, Sequence[Callable[[], Any]]], seconds: float
) -> dict[str, BenchRow]:
    """``rows`` with the times of ``calls`` (one callable for each input set) on the current CUDA device."""
    tools = cuda_tools(torch.cuda.current_device())
    timers = {name: Timer(sets, tools=tools) for name, sets in calls.items()}

    def turns(names: Sequence[str], take: Take) -> tuple[dict[str, Timing], dict[str, str]]:
        return take_turns(names, take, seconds=seconds, clock_ns=tools.clock_ns)

    eager, notes = turns(list(timers), lambda name, n: timers[name].eager(n, seconds=seconds))
    host_calls = {
        name: max(1, min(_HOST_CALLS, int(_HOST_SAMPLE_US / timing.median_us)))
        for name, timing in eager.items()
    }
    host, _ = turns(list(eager), lambda name, n: timers[name].enqueue(n, host_calls[name], seconds=seconds))
    short = [name for name, timing in eager.items() if timing.median_us <= _GRAPH_LIMIT_US]
    notes |= {name: "no graph: over 50 ms a call" for name in eager if name not in short}
    graph, ungraphed = turns(short, lambda name, n: timers[name].graph(n, seconds=seconds))
    notes |= ungraphed
    graph_cold, _ = turns(list(graph), lambda name, n: timers[name].graph(n, cache="cold", seconds=seconds))
    eager_cold, _ = turns(
        [name for name in eager if name not in graph],
        lambda name, n: timers[name].eager(n, cache="cold", seconds=seconds),
    )
    return {
        name: replace(
            row,
            eager=eager.get(name, row.eager),
            eager_cold=eager_cold.get(name),
            graph=graph.get(name),
            graph_cold=graph_cold.get(name),
            host=host.get(name),
            note=notes.get(name, row.note),
        )
        for name, row in rows.items()
    }


def _rated(row: BenchRow, flops: int) -> BenchRow:
    """``row`` with its operations a second, where it computes the problem and was timed."""
    for kind in _RATED_BY:
        timing = getattr(row, kind)
        if timing is not None and row.error is not None:
            return replace(row, tflops=flops / timing.median_us / 1e6, tflops_from=kind)
    return row


def _bind(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: function(*inputs)
