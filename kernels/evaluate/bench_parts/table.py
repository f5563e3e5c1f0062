"""A line of the table over shapes of every size: the cold time alone, of what ends in time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from kernels.evaluate.bench_parts.forecast import release
from kernels.evaluate.bench_parts.routes import OnSets, Route, failed, is_ours
from kernels.evaluate.bench_parts.timers import GRAPH_LIMIT_US, Timers, cpu_times
from kernels.evaluate.result import BenchResult, BenchRow, Lead
from kernels.evaluate.timing.host import time_once

if TYPE_CHECKING:
    from kernels.evaluate.bench import Run, Yardstick

__all__ = ["line"]

# The share of the GPU's memory that a route of the table may take: their graphs share it.
_MEMORY_SHARE = 4


def line(run: Run, limit_seconds: float) -> BenchResult:
    """The result of :func:`kernels.evaluate.bench.bench_line`."""
    limit_us = limit_seconds * 1e6
    rows: dict[str, BenchRow] = {}
    routes: dict[str, Route] = {}
    words = "nothing: no route was started"
    forecast = run.forecast(limit_us)
    with torch.no_grad():
        for name, route in run.routes().items():
            try:
                reason = forecast.too_long(route)
            except Exception as failure:  # a route that this torch or device does not have is a finding
                rows[name] = failed(name, failure)
                continue
            rows[name] = BenchRow(name, note=reason, left_out=bool(reason))
            if not reason:
                routes[name] = route
        forecast.forget()
        if routes:
            inputs = run.inputs()
            yardstick = run.yardstick(inputs)
            words = yardstick.words
            once_us: dict[str, float] = {}
            for name, route in routes.items():
                rows[name], once_us[name] = _first_call(name, route, inputs, yardstick, run.device, limit_us)
                release(run.device)
            routes = {name: route for name, route in routes.items() if not rows[name].note}
            if run.device == "cuda":
                rows = _cold_times(rows, run.on_sets(inputs, routes), once_us, run)
            else:
                rows = cpu_times(rows, routes, inputs, run.seconds)
        release(run.device)
    result = run.result(rows, words)
    accurate, fastest = (_lead(result.rows, only) for only in (True, False))
    return replace(result, in_table=True, lead_over_accurate=accurate, lead_over_fastest=fastest)


def _first_call(
    name: str, route: Route, inputs: Sequence[Any], yardstick: Yardstick, device: str, limit_us: float
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
        if took_us > min(limit_us, GRAPH_LIMIT_US):  # the first call may have compiled
            took_us = time_once(call, device)[1]
    except Exception as failure:  # a route that this torch or device does not have is a finding
        return failed(name, failure), 0.0
    if took_us > limit_us:
        reason = f"{took_us / 1e6:.3g} s a call, over {limit_us / 1e6:g} s"
        return replace(row, note=reason, left_out=True), took_us
    if peak_bytes * _MEMORY_SHARE > _memory_total(device):
        reason = f"{peak_bytes / 1e9:.3g} GB a call, over a quarter of the GPU's memory"
        return replace(row, note=reason, left_out=True), took_us
    return row, took_us


def _memory_before(device: str) -> int:
    if device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _memory_peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def _memory_total(device: str) -> float:
    return torch.cuda.mem_get_info()[1] if device == "cuda" else math.inf


def _cold_times(
    rows: Mapping[str, BenchRow],
    routes: Mapping[str, OnSets],
    once_us: Mapping[str, float],
    run: Run,
) -> dict[str, BenchRow]:
    """``rows`` with the cold time of ``routes``: a graph replay, else an eager call."""
    timers = Timers(routes, run.seconds, run.tools())
    long = [name for name in routes if once_us[name] > GRAPH_LIMIT_US]
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


def _lead(rows: Sequence[BenchRow], accurate: bool) -> Lead | None:
    """How much faster the first ``ModelNew`` row is than the fastest peer, or the fastest accurate one."""
    timed = [(row, getattr(row, row.tflops_from).median_us) for row in rows if row.tflops_from]
    ours = next((time_us for row, time_us in timed if is_ours(row.name)), None)
    peers = [
        (time_us, row.name)
        for row, time_us in timed
        if not is_ours(row.name) and (row.accurate or not accurate)
    ]
    if ours is None or not peers:
        return None
    time_us, name = min(peers)
    return Lead(name, time_us / ours)
