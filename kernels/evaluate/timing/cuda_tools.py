"""What the CUDA clock is made of: events, waits, an L2 flush, a delay; bound before a candidate is imported.

A candidate may replace ``torch.cuda.synchronize``, ``torch.cuda.Event`` or ``time.perf_counter``.
So events and waits are the driver's own functions (``libcuda.so.1``), called
through ctypes objects that only this module holds; the flush is a CUDA graph that was
recorded before the candidate was there, out of reach of a dispatch mode; and what is
taken from torch is its C functions, taken once. Make one :class:`CudaTools` early and
hand it to everything that measures. Code that hunts down these objects in the
interpreter can still change them: the judge's clock outside the process is the
answer to that.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch

from kernels.evaluate.unavailable import Unavailable

__all__ = ["CudaTools", "DriverError"]

_EVENT_DEFAULT = 0
# Kinds of graph node, CUgraphNodeType.
_NODE_KERNEL, _NODE_MEMCPY, _NODE_MEMSET, _NODE_CHILD = 0, 1, 2, 4


class DriverError(RuntimeError):
    """A CUDA driver call failed: which one, and the driver's own words."""


class CudaTools:
    """The primitives of measuring on CUDA device ``index``, which becomes current and initialised.

    ``flush()`` empties the L2 cache of what was in it: writes a buffer of twice its
    size, then reads it, so that the cache is left with clean lines that cost nothing to
    drop. Takes that much memory for good. Raises :class:`Unavailable` where torch
    drives no CUDA device or the driver's library is missing.
    """

    def __init__(self, index: int = 0) -> None:
        if torch.version.cuda is None or not torch.cuda.is_available():
            raise Unavailable(
                "torch finds no NVIDIA GPU here", "python -m kernels doctor says what is missing"
            )
        torch.cuda.set_device(index)
        torch.cuda.synchronize()
        self.index = index
        self.clock_ns: Callable[[], int] = time.perf_counter_ns
        self._driver = _Driver()
        self._raw_stream = torch._C._cuda_getCurrentRawStream
        self._get_stream = torch._C._cuda_getCurrentStream
        self._set_stream = torch._C._cuda_setStream
        self._sleep = torch._C._cuda_sleep
        properties = torch.cuda.get_device_properties(index)
        self.l2_bytes = int(getattr(properties, "L2_cache_size", 0))
        self.uuid = f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else ""
        self._flush_graph, self._flush_memory = _record_flush(max(self.l2_bytes, 32 << 20) * 2)
        # Classes and functions that capture a candidate's call, as they are now.
        self.new_graph: Callable[..., Any] = torch.cuda.CUDAGraph
        self.replay: Callable[[Any], None] = torch._C._CUDAGraph.replay
        self.raw_graph: Callable[[Any], int] = torch._C._CUDAGraph.raw_cuda_graph
        self.instantiate: Callable[[Any], None] = torch._C._CUDAGraph.instantiate
        self.capture: Callable[..., Any] = torch.cuda.graph
        self.pool_handle: Callable[[], Any] = torch.cuda.graph_pool_handle
        self._end_pool: Callable[..., None] = torch._C._cuda_endAllocateToPool
        self._generator = torch.cuda.default_generators[self.index]
        self.cycles_per_us = self._measure_cycles()

    def wait(self) -> None:
        """Return when every stream of the device is idle. Raises :class:`DriverError` for a failed kernel."""
        self._driver.call("cuCtxSynchronize")

    def stream(self) -> int:
        """The handle of torch's current stream."""
        return self._raw_stream(self.index)

    def save_stream(self) -> Any:
        """torch's current stream, for :meth:`restore_stream`."""
        return self._get_stream(self.index)

    def restore_stream(self, saved: Any) -> None:
        """Make ``saved`` torch's current stream again."""
        stream_id, device_index, device_type = saved
        self._set_stream(stream_id=stream_id, device_index=device_index, device_type=device_type)

    def abandon_capture(self, pool: Any, saved: Any) -> None:
        """Undo what torch leaves behind when a capture fails.

        Its capture stream stays current, ``pool`` stays open for recording, and the
        random generator refuses every later draw.
        """
        self.restore_stream(saved)
        with contextlib.suppress(RuntimeError):  # not open: the capture got as far as closing it
            self._end_pool(self.index, pool)
        self._generator.graphsafe_set_state(self._generator.clone_state())

    def event(self) -> ctypes.c_void_p:
        """A new event that keeps time."""
        made = ctypes.c_void_p()
        self._driver.call("cuEventCreate", ctypes.byref(made), ctypes.c_uint(_EVENT_DEFAULT))
        return made

    def record(self, event: ctypes.c_void_p) -> None:
        """Have ``event`` take the time when the current stream gets there."""
        self._driver.call("cuEventRecord", event, ctypes.c_void_p(self.stream()))

    def elapsed_us(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Microseconds between two events that have both happened."""
        milliseconds = ctypes.c_float()
        self._driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e3

    def flush(self) -> None:
        """Put on the current stream what leaves nothing of ours in the L2 cache."""
        self.replay(self._flush_graph)

    def delay(self, microseconds: float) -> None:
        """Keep the current stream busy for about this long, so that the host gets ahead of it."""
        self._sleep(int(microseconds * self.cycles_per_us))

    def graph_work(self, graph: int) -> int:
        """How many kernels, copies and fills a captured graph holds, those of its child graphs included."""
        return self._driver.graph_work(ctypes.c_void_p(graph))

    def empty_pair_us(self, pairs: int = 21) -> float:
        """What the events read with nothing between them: the median of ``pairs``."""
        events = [(self.event(), self.event()) for _ in range(pairs)]
        for start, end in events:
            self.delay(20.0)
            self.record(start)
            self.record(end)
        self.wait()
        return sorted(self.elapsed_us(start, end) for start, end in events)[pairs // 2]

    def _measure_cycles(self) -> float:
        """Clock cycles in a microsecond, by which :meth:`delay` counts."""
        cycles, rates = 2_000_000, []
        for _ in range(3):  # the first finds the clock low
            start, end = self.event(), self.event()
            self.record(start)
            self._sleep(cycles)
            self.record(end)
            self.wait()
            rates.append(cycles / self.elapsed_us(start, end))
        return max(rates)


class _Driver:
    """libcuda's functions by name; a failing one raises :class:`DriverError`."""

    NAMES = (
        "cuCtxSynchronize",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventElapsedTime",
        "cuGraphGetNodes",
        "cuGraphNodeGetType",
        "cuGraphChildGraphNodeGetGraph",
        "cuGetErrorString",
    )

    def __init__(self) -> None:
        try:
            # An object of our own: attributes set on another CDLL of the same library do not show here.
            library = ctypes.CDLL("libcuda.so.1")
            self._functions = {name: library[name] for name in self.NAMES}
        except (OSError, AttributeError) as error:
            raise Unavailable(f"the CUDA driver's library lacks what is needed: {error}") from error

    def call(self, name: str, *arguments: Any) -> None:
        code = self._functions[name](*arguments)
        if code != 0:
            words = ctypes.c_char_p()
            self._functions["cuGetErrorString"](ctypes.c_int(code), ctypes.byref(words))
            raise DriverError(f"{name}: {(words.value or b'unknown error').decode()} ({code})")

    def graph_work(self, graph: ctypes.c_void_p) -> int:
        count = ctypes.c_size_t()
        self.call("cuGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * max(count.value, 1))()
        if count.value:
            self.call("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
        found = 0
        for node in nodes[: count.value]:
            kind = ctypes.c_int()
            self.call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            if kind.value in (_NODE_KERNEL, _NODE_MEMCPY, _NODE_MEMSET):
                found += 1
            elif kind.value == _NODE_CHILD:
                child = ctypes.c_void_p()
                self.call("cuGraphChildGraphNodeGetGraph", ctypes.c_void_p(node), ctypes.byref(child))
                found += self.graph_work(child)
        return found


def _record_flush(size_bytes: int) -> tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, torch.Tensor]]:
    buffer = torch.empty(size_bytes // 4, dtype=torch.float32, device="cuda")
    total = torch.empty((), dtype=torch.float32, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        buffer.fill_(1.0)
        torch.sum(buffer, dim=0, out=total)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        buffer.fill_(1.0)
        torch.sum(buffer, dim=0, out=total)
    return graph, (buffer, total)
