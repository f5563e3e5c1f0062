"""The CUDA timers inside a worker: made over the worker's sets, asked in batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import Any

import torch

from kernels.evaluate.timing.cuda import CaptureFailed, Timer
from kernels.evaluate.timing.cuda_tools import CudaTools
from kernels.evaluate.timing.host import no_collector
from kernels.evaluate.timing.turns import cuda_tools

__all__ = ["Timers", "pace", "timed"]


class Timers:
    """The timers of a worker, each over a ring of input sets. Ask them where autograd is off.

    ``tools`` None is this process's; ``copied`` makes the copies of outputs that a timer needs.
    """

    def __init__(self, tools: CudaTools | None = None, copied: Callable[[Any], Any] | None = None) -> None:
        self._tools, self._copied = tools, copied
        self._timers: dict[Hashable, Timer] = {}
        self._unbound: set[Hashable] = set()
        self._padding: torch.Tensor | None = None

    def of(self, key: Hashable, model: Callable[..., Any], values: Sequence[Any]) -> Timer:
        """The timer known by ``key``, of ``model`` over ``values``: the same ones until :meth:`move`."""
        calls = [functools.partial(model, *inputs) for inputs in values]
        if key not in self._timers:
            tools = cuda_tools(torch.cuda.current_device()) if self._tools is None else self._tools
            self._timers[key] = Timer(calls, tools=tools, copied=self._copied)
        elif key in self._unbound:
            self._timers[key].rebind(calls)
        self._unbound.discard(key)
        return self._timers[key]

    def move(self, place: int) -> None:
        """Give all memory back, so that tensors that are made now lie elsewhere; nobody else may hold any."""
        for timer in self._timers.values():
            timer.unbind()
        self._unbound = set(self._timers)
        self._padding = None
        torch.cuda.empty_cache()
        # Another size for each of the first places: what is allocated next begins somewhere else.
        size = (1 + place * 13 % 31) * (2 << 20)
        free, _ = torch.cuda.mem_get_info()
        if 16 * size < free:
            self._padding = torch.empty(size, dtype=torch.uint8, device="cuda")


def timed(
    timer: Timer, mode: str, cache: str, samples: int, seconds: float
) -> tuple[dict[str, Any], list[Any]]:
    """One batch as a reply, and the outputs of its last calls; ``failed`` says why there is none."""
    take = timer.eager if mode == "eager" else timer.graph
    try:
        # Once for all calls, or it would be in the time of each; and a collection of all that torch is made
        # of, before each of the many batches, would take longer than they do.
        with torch.no_grad(), no_collector(collect=False):
            taken, calls, note = take(samples, cache=cache, seconds=seconds)
    except CaptureFailed as error:
        return {"failed": str(error)}, []
    outputs = [output for output in timer.outputs if output is not None]
    complete = len(outputs) == len(timer.outputs)
    reply = {"samples_us": list(taken), "calls": calls, "note": note, "complete": complete}
    return reply, outputs if complete else []


def pace(samples: int) -> float:
    """Microseconds by the GPU's events of a replay, the median of ``samples``, of a graph of small kernels.

    The graph is made and replayed as a candidate's is, so others on the GPU delay both alike.
    """
    taken, calls, _ = _small_kernels().graph(samples, seconds=60.0)
    return median(taken) * calls


@functools.lru_cache(maxsize=1)
def _small_kernels() -> Timer:
    values = torch.zeros(1 << 12, device="cuda")
    return Timer([lambda: values.mul_(0.5)], tools=cuda_tools(torch.cuda.current_device()))
