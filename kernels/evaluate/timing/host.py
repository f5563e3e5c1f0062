"""How long calls take, several in one interleaved run.

Neighbours in a table are timed in turns, a sample each, so that a clock change or
a busy machine falls on all of them. Every number is a median with its quartiles.

Four questions, four functions:

- :func:`time_host`: a call on the CPU, by the monotonic clock.
- :func:`time_eager`: back-to-back calls on a CUDA stream, by CUDA events. Below
  some tens of microseconds this is the host's pace, not the GPU's.
- :func:`time_graph`: the same calls in a replayed CUDA graph, with no host between them.
- :func:`time_enqueue`: what a call costs the calling thread before it returns.

On CUDA all run on the current device. Calls repeat on the same tensors, so small
inputs are found in the L2 cache.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

from kernels.evaluate.result import Timing

__all__ = ["no_collector", "once", "time_eager", "time_enqueue", "time_graph", "time_host", "time_once"]

Call = Callable[[], object]
_T = TypeVar("_T")

# A sample shorter than this is mostly the clock's own cost and grain.
_SAMPLE_SECONDS = 1e-3
_MOST_SAMPLES = 101
# Taken however short the time, unless they would take ten times of it.
_LEAST_SAMPLES = 5
# Fewer than the driver's launch queue holds (1024): past it, a launch waits for the GPU.
_ENQUEUE_CALLS = 100


def time_once(call: Callable[[], _T], device: str) -> tuple[_T, float]:
    """What one call returns, and the microseconds until it was there."""
    start = time.perf_counter_ns()
    result = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, (time.perf_counter_ns() - start) / 1e3


def once(microseconds: float) -> Timing:
    """The timing of a call that is too slow to repeat."""
    return Timing(microseconds, microseconds, microseconds, samples=1, calls=1)


def time_host(calls: Mapping[str, Call], *, seconds: float = 0.5) -> dict[str, Timing]:
    """Wall time of each call by the CPU's monotonic clock; about ``seconds`` in all for each."""

    def sample(call: Call, count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        return (time.perf_counter_ns() - start) / 1e3

    return _interleaved(calls, sample, seconds)


def time_eager(calls: Mapping[str, Call], *, seconds: float = 0.5) -> dict[str, Timing]:
    """Time between results of back-to-back calls on the current CUDA stream, by events."""
    return _interleaved(calls, _event_sample, seconds)


def time_graph(calls: Mapping[str, Call], *, seconds: float = 0.5) -> dict[str, Timing]:
    """Time of each call inside a replayed CUDA graph that holds many of them in a row.

    Each call is captured as it is: one that synchronises or allocates outside torch's
    pools raises what torch raises. Small calls fill a graph of about a millisecond, so
    that the launch of the graph itself does not show.
    """
    replays: dict[str, Call] = {}
    inside: dict[str, int] = {}
    for name, call in calls.items():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
            side.synchronize()
            each_us = _event_sample(call, 5) / 5
        torch.cuda.current_stream().wait_stream(side)
        count = max(1, min(200, math.ceil(_SAMPLE_SECONDS * 1e6 / max(each_us, 1.0))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        replays[name], inside[name] = graph.replay, count
    timings = _interleaved(replays, _event_sample, seconds)
    return {
        name: Timing(
            t.median_us / inside[name],
            t.low_us / inside[name],
            t.high_us / inside[name],
            t.samples,
            t.calls * inside[name],
        )
        for name, t in timings.items()
    }


def time_enqueue(calls: Mapping[str, Call], *, seconds: float = 0.5) -> dict[str, Timing]:
    """What one call costs the calling thread on CUDA: launched, not finished.

    The GPU is idle at the start of every sample, and a sample stays shorter than the launch queue.
    """

    def sample(call: Call, count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        elapsed = time.perf_counter_ns() - start
        torch.cuda.synchronize()
        return elapsed / 1e3

    return _interleaved(calls, sample, seconds, most_calls=_ENQUEUE_CALLS)


def _event_sample(call: Call, count: int) -> float:
    """Microseconds for ``count`` calls on the current stream, between two CUDA events."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def _interleaved(
    calls: Mapping[str, Call],
    sample: Callable[[Call, int], float],
    seconds: float,
    most_calls: int = 1_000_000,
) -> dict[str, Timing]:
    """Samples each call in turn until its share of ``seconds`` is spent. ``sample`` returns microseconds."""
    with no_collector():
        counts = {name: _calls_per_sample(call, sample, most_calls) for name, call in calls.items()}
        taken: dict[str, list[float]] = {name: [] for name in calls}
        spent = dict.fromkeys(calls, 0.0)
        waiting = list(calls)
        while waiting:
            for name in waiting:
                elapsed_us = sample(calls[name], counts[name])
                taken[name].append(elapsed_us / counts[name])
                spent[name] += elapsed_us / 1e6
            # Turning the order takes turns at running after the slowest neighbour.
            waiting = [
                name
                for name in (*waiting[1:], waiting[0])
                if (len(taken[name]) < _LEAST_SAMPLES and spent[name] < 10 * seconds)
                or (len(taken[name]) < _MOST_SAMPLES and spent[name] < seconds)
            ]
    return {name: _summary(taken[name], counts[name]) for name in calls}


def _calls_per_sample(call: Call, sample: Callable[[Call, int], float], most: int) -> int:
    """How many calls make a sample long enough; the first, which may build or allocate, does not count."""
    if sample(call, 1) >= 1e6:
        return 1
    count = 1
    while count < most:
        elapsed_us = sample(call, count)
        if elapsed_us >= _SAMPLE_SECONDS * 1e6:
            return count
        needed = count * _SAMPLE_SECONDS * 1e6 / max(elapsed_us, 1e-3)
        # Grow by ten at most: the first calls are slow, and say little about the next.
        count = min(most, max(count + 1, min(math.ceil(needed), 10 * count)))
    return most


def _summary(samples_us: list[float], calls: int) -> Timing:
    if len(samples_us) == 1:
        low = median = high = samples_us[0]
    else:
        low, median, high = statistics.quantiles(samples_us, n=4, method="inclusive")
    return Timing(median, low, high, len(samples_us), calls)


@contextmanager
def no_collector(collect: bool = True) -> Iterator[None]:
    """Keeps the garbage collector from running inside a sample; unless told otherwise it runs once before."""
    enabled = gc.isenabled()
    if collect:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
