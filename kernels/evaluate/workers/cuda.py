"""The CUDA timer inside a worker: made over the worker's sets, asked in batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.evaluate.timing.cuda import CaptureFailed, Timer
from kernels.evaluate.timing.host import no_collector
from kernels.evaluate.timing.turns import cuda_tools

__all__ = ["make_timer", "timed"]


def make_timer(
    model: Callable[..., Any],
    values: list[Any],
    tools: Any = None,
    copied: Callable[[Any], Any] | None = None,
) -> Timer:
    """A timer of ``model`` over a ring of input sets; ``tools`` None is this process's.

    ``copied`` makes the copies of its outputs. Ask it where autograd is off.
    """
    tools = cuda_tools(torch.cuda.current_device()) if tools is None else tools
    return Timer([functools.partial(model, *inputs) for inputs in values], tools=tools, copied=copied)


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
