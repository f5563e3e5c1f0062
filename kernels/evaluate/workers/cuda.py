"""The CUDA timer inside a worker: made over the worker's sets, asked in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.evaluate.timing.cuda import CaptureFailed, Timer
from kernels.evaluate.timing.turns import cuda_tools

__all__ = ["make_timer", "timed"]


def make_timer(model: Callable[..., Any], values: list[Any], tools: Any = None) -> Timer:
    """A timer of ``model`` over a ring of input sets, without autograd; ``tools`` None is this process's."""

    def bound(inputs: Any) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return model(*inputs)

        return call

    tools = cuda_tools(torch.cuda.current_device()) if tools is None else tools
    return Timer([bound(inputs) for inputs in values], tools=tools)


def timed(
    timer: Timer, mode: str, cache: str, samples: int, seconds: float
) -> tuple[dict[str, Any], list[Any]]:
    """One batch as a reply, and the outputs of its last calls; ``failed`` says why there is none."""
    take = timer.eager if mode == "eager" else timer.graph
    try:
        taken, calls, note = take(samples, cache=cache, seconds=seconds)
    except CaptureFailed as error:
        return {"failed": str(error)}, []
    outputs = [output for output in timer.outputs if output is not None]
    complete = len(outputs) == len(timer.outputs)
    reply = {"samples_us": list(taken), "calls": calls, "note": note, "complete": complete}
    return reply, outputs if complete else []
