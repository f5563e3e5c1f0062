"""How fast a problem's ``ModelNew`` is beside its peers, all in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from kernels.errors import first_line
from kernels.evaluate.check import default_case, on_device
from kernels.evaluate.correctness import largest_error
from kernels.evaluate.environment import describe_environment
from kernels.evaluate.result import BenchResult, BenchRow, Timing
from kernels.evaluate.timing.host import once, time_eager, time_enqueue, time_graph, time_host, time_once
from kernels.problem import Case, Problem

__all__ = ["DEFAULT_SHAPES", "bench", "case_of"]

# The problem's own default, and a length at which the arithmetic outweighs the call.
DEFAULT_SHAPES: tuple[Mapping[str, int], ...] = ({}, {"seqlen": 2048, "head_dim": 64})

# What a call costs at least through torch: in place, and with an output to allocate and free.
BASELINES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x.add_(1), 10 floats": lambda x: x.add_(1),
    "x + 1, 10 floats": lambda x: x + 1,
}

# A call this long is many launches: its graph would take longer to record than to learn from.
_GRAPH_LIMIT_US = 50_000.0


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
    """
    inputs = on_device(problem.make_inputs(**case.shape, dtype=case.dtype, **case.options), device)
    too_slow_us = 10 * seconds * 1e6
    rows: dict[str, BenchRow] = {}
    calls: dict[str, Callable[[], Any]] = {}
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
                calls[name] = call
            else:
                rows[name] = replace(rows[name], eager=once(microseconds), note="too slow to repeat: one run")
        if device == "cuda":
            few = [torch.zeros(10, device=device)]
            for name, function in BASELINES.items():
                rows[name], calls[name] = BenchRow(name), _bind(function, few)
            eager = time_eager(calls, seconds=seconds)
            host = time_enqueue(calls, seconds=seconds)
            graph, notes = _graph_times(calls, eager, seconds)
            for name in calls:
                rows[name] = replace(
                    rows[name],
                    eager=eager[name],
                    graph=graph.get(name),
                    host=host[name],
                    note=notes.get(name, ""),
                )
        else:
            for name, timing in time_host(calls, seconds=seconds).items():
                rows[name] = replace(rows[name], eager=timing)
    return BenchResult(
        problem=problem.name,
        case=case.name,
        shape=dict(case.shape),
        dtype=case.dtype,
        flops=problem.flops(case.shape),
        least_bytes=problem.least_bytes(case.shape, case.dtype),
        rows=tuple(rows.values()),
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


def _graph_times(
    calls: Mapping[str, Callable[[], Any]], eager: Mapping[str, Timing], seconds: float
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Graph replay of what can be captured, and a note for the rest."""
    capturable, notes = {}, {}
    for name, call in calls.items():
        if eager[name].median_us > _GRAPH_LIMIT_US:
            notes[name] = "no graph: over 50 ms a call"
            continue
        try:
            with _scratch_graph():
                call()
        except RuntimeError as failure:
            notes[name] = f"no graph: {first_line(failure)}"
            continue
        capturable[name] = call
    return time_graph(capturable, seconds=seconds), notes


@contextmanager
def _scratch_graph() -> Iterator[None]:
    """Captures its body into a graph that is thrown away; leaves the device usable when that fails."""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            yield
    finally:
        torch.cuda.synchronize()


def _bind(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: function(*inputs)
