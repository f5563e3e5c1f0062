"""Several calls timed in turns on CUDA, each by a :class:`Timer` of its own.

A turn is a batch of samples, and goes round until every call has had its time: a
clock change or a busy machine then falls on all of them. Every number is a median
with its quartiles over the samples of all turns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from kernels.errors import first_line
from kernels.evaluate.result import Timing
from kernels.evaluate.timing.cuda import CaptureFailed, Sampled, Timer
from kernels.evaluate.timing.cuda_tools import CudaTools
from kernels.evaluate.timing.host import goes_on, no_collector, summary, time_host

__all__ = ["cuda_tools", "take_turns", "time_eager"]

# Samples a turn. One more runs before them, untaken, so a call that is long by itself gets fewer.
_BATCH = 10
_LONG_BATCH = 3
_LONG_US = 5_000.0


@functools.lru_cache(maxsize=8)
def cuda_tools(index: int) -> CudaTools:
    """The clock, events and L2 flush of CUDA device ``index``, made once: the flush keeps its memory.

    Raises :class:`kernels.evaluate.unavailable.Unavailable` where torch drives no such device.
    """
    return CudaTools(index)


def take_turns(
    names: Sequence[str],
    take: Callable[[str, int], Sampled],
    *,
    seconds: float,
    clock_ns: Callable[[], int],
) -> tuple[dict[str, Timing], dict[str, str]]:
    """The timing of each of ``names``, and for those that have none the reason.

    ``take(name, samples)`` has a :class:`Timer` take that many samples. Its first use,
    which warms up and records graphs, is not counted; then each name gets about
    ``seconds`` by ``clock_ns``. A call that no graph can hold (:class:`CaptureFailed`), or
    that does not fit into the GPU's memory, has a reason; what else a call raises is raised.
    """
    reasons: dict[str, str] = {}
    batches: dict[str, int] = {}
    taken: dict[str, list[float]] = {}
    calls: dict[str, int] = {}
    spent = dict.fromkeys(names, 0.0)
    with no_collector():
        for name in names:
            try:
                (first_us, *_), count, _ = take(name, 1)
            except CaptureFailed as failure:
                reasons[name] = f"no graph: {failure}"
                continue
            except torch.OutOfMemoryError as failure:
                reasons[name] = first_line(failure)
                continue
            batches[name] = _BATCH if first_us * count < _LONG_US else _LONG_BATCH
            taken[name] = []
        waiting = list(taken)
        while waiting:
            for name in waiting:
                begun = clock_ns()
                samples, calls[name], _ = take(name, batches[name])
                taken[name] += samples
                spent[name] += (clock_ns() - begun) / 1e9
            # Turning the order takes turns at running after the slowest neighbour.
            turned = (*waiting[1:], waiting[0])
            waiting = [name for name in turned if goes_on(len(taken[name]), spent[name], seconds)]
    return {name: summary(taken[name], calls[name]) for name in taken}, reasons


def time_eager(
    calls: Mapping[str, Callable[[], object]],
    device: str,
    *,
    seconds: float = 0.5,
    prepare: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Timing]:
    """Microseconds a call of each, back to back, on ``device`` (``"cpu"`` or ``"cuda"``, the current GPU).

    On CUDA with the L2 cache as the calls leave it; below some tens of microseconds that
    is the host's pace, not the GPU's. ``prepare`` may name, for a call, what is run before each
    batch of its samples, untimed. Raises what a call raises.
    """
    if device != "cuda":
        return time_host(calls, seconds=seconds, prepare=prepare)
    before = prepare or {}
    tools = cuda_tools(torch.cuda.current_device())
    timers = {name: Timer([call], tools=tools) for name, call in calls.items()}

    def batch(name: str, samples: int) -> Sampled:
        if name in before:
            before[name]()
        return timers[name].eager(samples, seconds=seconds)

    timings, reasons = take_turns(
        list(timers),
        batch,
        seconds=seconds,
        clock_ns=tools.clock_ns,
    )
    for name, reason in reasons.items():
        raise torch.OutOfMemoryError(f"{name}: {reason}")
    return timings
