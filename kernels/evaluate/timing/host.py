"""How long calls take on the CPU, several in one interleaved run; what other timers share.

Neighbours in a table are timed in turns, a sample each, so that a clock change or
a busy machine falls on all of them. Every number is a median with its quartiles.
On CUDA each call has a :class:`kernels.evaluate.timing.cuda.Timer`, and
:mod:`kernels.evaluate.timing.turns` sees to the turns.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch

from kernels.evaluate.result import Timing

__all__ = ["goes_on", "no_collector", "once", "summary", "time_host", "time_once"]

Call = Callable[[], object]
_T = TypeVar("_T")

# A sample shorter than this is mostly the clock's own cost and grain.
_SAMPLE_SECONDS = 1e-3
_MOST_CALLS = 1_000_000
_MOST_SAMPLES = 101
# Taken however short the time, unless they would take ten times of it.
_LEAST_SAMPLES = 5


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


def goes_on(samples: int, spent_s: float, seconds: float) -> bool:
    """Whether a call that has ``samples`` samples after ``spent_s`` of its ``seconds`` is sampled again."""
    if samples < _LEAST_SAMPLES:
        return spent_s < 10 * seconds
    return samples < _MOST_SAMPLES and spent_s < seconds


def summary(samples_us: Sequence[float], calls: int) -> Timing:
    """The median and quartiles of ``samples_us``, each the mean microseconds of ``calls`` calls."""
    if len(samples_us) == 1:
        return replace(once(samples_us[0]), calls=calls)
    low, median, high = statistics.quantiles(samples_us, n=4, method="inclusive")
    return Timing(median, low, high, len(samples_us), calls)


def time_host(
    calls: Mapping[str, Call],
    *,
    seconds: float = 0.5,
    prepare: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Timing]:
    """Wall time of each call by the CPU's monotonic clock; about ``seconds`` in all for each.

    ``prepare`` may name, for a call, what is run before each of its samples, untimed.
    """
    before = prepare or {}

    def sample(name: str, count: int) -> float:
        if name in before:
            before[name]()
        call = calls[name]
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        return (time.perf_counter_ns() - start) / 1e3

    return _interleaved(list(calls), sample, seconds)


def _interleaved(
    names: Sequence[str], sample: Callable[[str, int], float], seconds: float
) -> dict[str, Timing]:
    """Samples each call in turn until its share of ``seconds`` is spent.

    ``sample(name, count)`` returns the microseconds of ``count`` calls.
    """
    with no_collector():
        counts = {name: _calls_per_sample(name, sample) for name in names}
        taken: dict[str, list[float]] = {name: [] for name in names}
        spent = dict.fromkeys(names, 0.0)
        waiting = list(names)
        while waiting:
            for name in waiting:
                elapsed_us = sample(name, counts[name])
                taken[name].append(elapsed_us / counts[name])
                spent[name] += elapsed_us / 1e6
            # Turning the order takes turns at running after the slowest neighbour.
            turned = (*waiting[1:], waiting[0])
            waiting = [name for name in turned if goes_on(len(taken[name]), spent[name], seconds)]
    return {name: summary(taken[name], counts[name]) for name in names}


def _calls_per_sample(name: str, sample: Callable[[str, int], float]) -> int:
    """How many calls make a sample long enough; the first, which may build or allocate, does not count."""
    if sample(name, 1) >= 1e6:
        return 1
    count = 1
    while count < _MOST_CALLS:
        elapsed_us = sample(name, count)
        if elapsed_us >= _SAMPLE_SECONDS * 1e6:
            return count
        needed = count * _SAMPLE_SECONDS * 1e6 / max(elapsed_us, 1e-3)
        # Grow by ten at most: the first calls are slow, and say little about the next.
        count = min(_MOST_CALLS, max(count + 1, min(math.ceil(needed), 10 * count)))
    return _MOST_CALLS


@contextmanager
def no_collector(collect: bool = True) -> Iterator[None]:
    """Keeps the garbage collector from running inside a sample; unless told otherwise it runs once before.

    Inside another of these it has run already, and is not run again.
    """
    enabled = gc.isenabled()
    if collect and enabled:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
