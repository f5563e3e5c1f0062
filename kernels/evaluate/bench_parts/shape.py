"""All there is about one shape: every kind of time, the reference included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kernels.evaluate.bench_parts.routes import OnSets, Route, failed
from kernels.evaluate.bench_parts.timers import GRAPH_LIMIT_US, Timers, cpu_times
from kernels.evaluate.result import BenchResult, BenchRow, Timing
from kernels.evaluate.timing.host import once, time_once

if TYPE_CHECKING:
    from kernels.evaluate.bench import Run

__all__ = ["BASELINES", "every_time"]

# What a call costs at least through torch: in place, and with an output to allocate and free.
BASELINES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x.add_(1), 10 floats": lambda x: x.add_(1),
    "x + 1, 10 floats": lambda x: x + 1,
}

# Calls whose cost to the host makes one sample, and how long they may take together.
_HOST_CALLS = 20
_HOST_SAMPLE_US = 20_000.0

# A reference in loops that would take longer is not started, on any shape.
_REFERENCE_LIMIT_US = 60e6


def every_time(run: Run) -> BenchResult:
    """The result of :func:`kernels.evaluate.bench.bench`."""
    inputs = run.inputs()
    too_slow_us = 10 * run.seconds * 1e6
    rows: dict[str, BenchRow] = {}
    routes: dict[str, Route] = {}
    forecast = run.forecast(_REFERENCE_LIMIT_US)
    with torch.no_grad():
        yardstick = run.yardstick(inputs)
        for name, route in run.routes(reference=True).items():
            call = route.on(inputs)
            try:
                reason = forecast.too_long(route) if name == "reference" else ""
                if reason:
                    rows[name] = BenchRow(name, note=reason, left_out=True)
                    continue
                route.select()
                result, microseconds = time_once(call, run.device)
                if microseconds >= too_slow_us:  # the first call may have compiled
                    result, microseconds = time_once(call, run.device)
                rows[name] = yardstick.judged(name, result)
            except Exception as failure:  # a route that this torch or device does not have is a finding
                rows[name] = failed(name, failure)
                continue
            if microseconds < too_slow_us:
                routes[name] = route
            else:
                rows[name] = replace(rows[name], eager=once(microseconds), note="too slow to repeat: one run")
        forecast.forget()
        if run.device == "cuda":
            few = run.placed([torch.zeros(10)])
            rows |= {name: BenchRow(name) for name in BASELINES}
            rows = _cuda_times(
                rows,
                run.on_sets(inputs, routes)
                | {name: OnSets([Route(function).on(few)]) for name, function in BASELINES.items()},
                run,
            )
        else:
            rows = cpu_times(rows, routes, inputs, run.seconds)
    return run.result(rows, yardstick.words)


def _cuda_times(rows: Mapping[str, BenchRow], routes: Mapping[str, OnSets], run: Run) -> dict[str, BenchRow]:
    """``rows`` with all times of ``routes``; a cold eager call stands in where there is no graph."""
    timers = Timers(routes, run.seconds, run.tools())
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


def _graphable(eager: Mapping[str, Timing], notes: dict[str, str]) -> list[str]:
    """The calls that are short enough to be recorded; the others are noted."""
    long = [name for name, timing in eager.items() if timing.median_us > GRAPH_LIMIT_US]
    notes |= dict.fromkeys(long, "no graph: over 50 ms a call")
    return [name for name in eager if name not in long]
