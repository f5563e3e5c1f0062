"""What a call put on the GPU, by the GPU's own records: kernels, copies and fills, with each one's time.

The records are those of CUPTI, which torch's profiler collects. Rows of the host (operators, runtime
calls) are left out, and nothing is added up over kernels: what runs side by side has no sum.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from kernels.evaluate.evaluation import Launch
from kernels.evaluate.unavailable import Unavailable

__all__ = ["from_trace", "record"]

# Kineto's categories of what the GPU ran; annotations and waits are on the same rows.
_ON_THE_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def record(call: Callable[[], object], warm_up: int = 3) -> tuple[Launch, ...]:
    """What one call launched on the current device, in the order of first launch.

    The same kernel with another grid or block is a row of its own. Copies and fills are
    named as CUPTI names them ("Memcpy DtoD (Device -> Device)", "Memset (Device)"). The
    times are under the profiler, which slows small kernels a little. Raises
    :class:`Unavailable` when the profiler cannot watch the GPU, and whatever the call raises.
    """
    if ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        raise Unavailable("this torch's profiler does not see CUDA", "install a CUDA build of torch")
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no NVIDIA GPU here")
    for _ in range(warm_up):
        call()
    torch.cuda.synchronize()
    # The first session starts CUPTI, and may miss what is launched meanwhile.
    _trace(lambda: None)
    found = from_trace(_trace(call))
    # No launch is a grave thing to say of a call: a profiler that sees torch's own must have said it.
    if not found and not from_trace(_trace(lambda: torch.ones(1, device="cuda"))):
        raise Unavailable("torch's profiler does not see what runs on this GPU")
    return found


def _trace(call: Callable[[], object]) -> Mapping[str, Any]:
    # acc_events only keeps torch from warning that one session's events end with it.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="kernelwright-launches-") as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            trace: Mapping[str, Any] = json.load(file)
    return trace


def from_trace(trace: Mapping[str, Any]) -> tuple[Launch, ...]:
    """The launches in a Kineto trace (a parsed Chrome trace), in the order of first launch."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in _ON_THE_GPU]
    found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[float]] = {}
    for event in sorted(events, key=lambda event: float(event["ts"])):
        arguments = event.get("args", {})
        key = (event["name"], _numbers(arguments.get("grid", ())), _numbers(arguments.get("block", ())))
        found.setdefault(key, []).append(float(event["dur"]))
    return tuple(
        Launch(name, len(times), tuple(times), grid, block) for (name, grid, block), times in found.items()
    )


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
