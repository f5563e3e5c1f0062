"""A GPU with a clock of its own, for the CUDA timer and what is built on it, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.evaluate import bench, check
from kernels.evaluate.result import Environment
from kernels.evaluate.timing import host, turns
from kernels.evaluate.timing.cuda_tools import DriverError


class _Graph:
    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph
        self.work_us: list[float] = []
        self.ready = False


class SimulatedGpu:
    """A GPU with a clock of its own: calls put work on it, the host waits for it or runs ahead."""

    HOST_CALL_US = 3.0
    EVENT_FLOOR_US = 1.5
    MEMORY_BYTES = 100_000_000

    def __init__(self) -> None:
        self.host_us = 0.0
        self.idle_at_us = 0.0
        self.log: list[str] = []
        self.graph: _Graph | None = None
        self.stream_now = "default"
        self.warm = True
        self.broken = False
        self.peak_bytes = 0

    # What a call under test does.
    def launch(self, us: float) -> None:
        if self.graph is not None:
            self.graph.work_us.append(us)
            return
        self.host_us += self.HOST_CALL_US
        self._enqueue(us if self.warm else 2 * us)
        self.warm = True

    def _enqueue(self, us: float) -> None:
        self.idle_at_us = max(self.idle_at_us, self.host_us) + us

    # What the timer asks of its tools.
    def clock_ns(self) -> int:
        self.host_us += 0.05
        return int(self.host_us * 1e3)

    def wait(self) -> None:
        if self.broken:
            raise DriverError("cuCtxSynchronize: an illegal memory access was encountered (700)")
        self.host_us = max(self.host_us, self.idle_at_us) + 1.0

    def event(self) -> list[float]:
        return []

    def record(self, event: list[float]) -> None:
        self.host_us += 0.5
        event[:] = [max(self.idle_at_us, self.host_us)]

    def elapsed_us(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0] + self.EVENT_FLOOR_US

    def flush(self) -> None:
        self.log.append("flush")
        self._enqueue(80.0)
        self.warm = False

    def delay(self, us: float) -> None:
        self.log.append("delay")
        self._enqueue(us)

    def empty_pair_us(self) -> float:
        return self.EVENT_FLOOR_US

    new_graph = _Graph

    def pool_handle(self) -> object:
        return object()

    def save_stream(self) -> str:
        return self.stream_now

    def abandon_capture(self, pool: object, saved: str) -> None:
        self.stream_now = saved

    @contextmanager
    def capture(self, graph: _Graph, pool: object) -> Iterator[None]:
        self.graph, self.stream_now = graph, "capture"
        try:
            yield
        except Exception:
            self.graph = None  # and the stream stays, as torch leaves it
            raise RuntimeError("capture invalidated") from None
        self.graph, self.stream_now = None, "default"

    def raw_graph(self, graph: _Graph) -> _Graph:
        return graph

    def graph_work(self, graph: _Graph) -> int:
        return len(graph.work_us)

    def instantiate(self, graph: _Graph) -> None:
        graph.ready = True

    def replay(self, graph: _Graph) -> None:
        assert graph.ready
        self.log.append(f"replay of {len(graph.work_us)}")
        self.host_us += 8.0 + 0.1 * len(graph.work_us)
        for index, us in enumerate(graph.work_us):
            self._enqueue(us if self.warm or index else 2 * us)
        self.warm = True


class Launches(TorchDispatchMode):
    """Every torch operation is computed on the CPU and puts ``us`` microseconds of work on ``gpu``."""

    def __init__(self, gpu: SimulatedGpu, us: float) -> None:
        super().__init__()
        self.gpu = gpu
        self.us = us

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.gpu.launch(self.us)
        return func(*args, **(kwargs or {}))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    """A simulated GPU in place of the current CUDA device, for :mod:`kernels.evaluate`'s bench and check.

    Tensors stay on the CPU; what asks torch for a CUDA device is answered.
    """
    gpu = SimulatedGpu()
    monkeypatch.setattr(turns, "cuda_tools", lambda index: gpu)
    monkeypatch.setattr(bench, "cuda_tools", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.wait)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: gpu.log.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (gpu.MEMORY_BYTES, gpu.MEMORY_BYTES))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 1_000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: setattr(gpu, "peak_bytes", 1_000))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: gpu.peak_bytes)
    for module in (bench, check):
        monkeypatch.setattr(module, "on_device", lambda inputs, device: inputs)
    # One call's time, by which a route is started or not, is the simulated one too.
    monkeypatch.setattr(host.time, "perf_counter_ns", gpu.clock_ns)
    where = Environment("a simulated GPU", "1.0", "13.0", "2.14.1", "3.11.7", 1, "2026-01-01 00:00 UTC", "")
    monkeypatch.setattr(bench, "describe_environment", lambda device, command: where)
    return gpu
