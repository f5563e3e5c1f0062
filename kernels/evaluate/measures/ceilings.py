"""Measures what a machine reaches, as a program: ``python -m kernels.evaluate.measures.ceilings cuda:0``.

Prints one JSON object. Rates come from large matrix products and large copies through
torch, the best of several; "launch" is a kernel that does nothing, inside a CUDA graph. What
torch cannot do on the device is left out. Beside what was measured stand bounds that no
program passes, from clocks and widths; those of the CPU are generous on purpose.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import torch

from kernels.device import describe
from kernels.evaluate.precision import kept
from kernels.evaluate.timing.nvml import opened
from kernels.evaluate.unavailable import Unavailable

__all__ = ["cpu_bounds", "cuda_bounds", "measure"]

_TARGET_SECONDS = 0.3
_MATRIX = {"cpu": 1536, "cuda": 8192}
_GRAPH_CALLS = 200

# Multiply-adds count as two. The densest unit of one multiprocessor in one clock, whatever its precision
# (int4 on sm_75 to sm_89, 8 bits on sm_90, 4 bits on sm_100 and newer), dense operands.
_DENSEST_PER_CLOCK = {
    (7, 5): 4096, (8, 0): 8192, (8, 6): 4096, (8, 7): 4096, (8, 9): 4096, (9, 0): 8192,
    (10, 0): 32768, (10, 3): 49152, (11, 0): 32768, (12, 0): 4096, (12, 1): 4096,
}  # fmt: skip
# Bytes in one clock between one multiprocessor and what is behind it: the width of its own cache.
_SM_BYTES_PER_CLOCK = 128
# More than any clock there is; 8-bit tile operations (AMX) in one clock; two full-width stores in one clock.
_CPU_HIGHEST_GHZ = 7.0
_CPU_OPERATIONS_PER_CLOCK = {"amx": 4096, "avx512": 512, "": 256}
_CPU_BYTES_PER_CLOCK = 128


def measure(device: str) -> dict[str, Any]:
    """The ceilings of ``"cpu"`` or ``"cuda:N"``, as :func:`.roofline.ceilings` stores them."""
    kind, _, index = device.partition(":")
    if kind == "cuda":
        torch.cuda.set_device(int(index or 0))
        found = _cuda(int(index or 0))
    else:
        found = _cpu()
    found["device"] = describe(kind, int(index or 0)).name
    found["date"] = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return found


# -- CPU ----------------------------------------------------------------------------------


def _cpu() -> dict[str, Any]:
    size = _MATRIX["cpu"]
    flops = 2 * size**3
    tflops = {}
    for dtype in (torch.float32, torch.float64):
        left, right = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
        out = torch.empty(size, size, dtype=dtype)
        tflops[_name(dtype)] = flops / _best_seconds(_bind(torch.mm, left, right, out=out)) / 1e12
    length = 32 << 20  # 128 MiB each: beyond any cache
    a, b, c = (torch.zeros(length) for _ in range(3))
    triad = 3 * a.nbytes / _best_seconds(_bind(torch.add, b, c, alpha=3.0, out=a)) / 1e9
    short = torch.zeros(1)
    launch = _best_seconds(_bind(torch.add, short, short, out=short), calls=2000)
    small = [torch.zeros(16 << 10) for _ in range(3)]  # 64 KiB each
    cached = _best_seconds(_bind(torch.add, small[0], small[1], alpha=3.0, out=small[2]), calls=200)
    operations, cache_gbps = cpu_bounds(torch.get_num_threads(), _cpu_flags())
    return {
        "tflops": tflops,
        "gbps": triad,
        "launch_us": launch * 1e6,
        "cache_gbps": max(3 * small[0].nbytes / cached / 1e9, triad),
        "cache_bytes": 0,
        "bound_tflops": operations,
        "bound_gbps": 0.0,
        "bound_cache_gbps": cache_gbps,
    }


def cpu_bounds(threads: int, flags: set[str]) -> tuple[float, float]:
    """TOP/s and GB/s that no program on so many cores passes; a candidate may use all cores, so all count."""
    cores = max(threads, len(os.sched_getaffinity(0)))
    unit = "amx" if "amx_int8" in flags else "avx512" if "avx512f" in flags else ""
    return (
        cores * _CPU_HIGHEST_GHZ * _CPU_OPERATIONS_PER_CLOCK[unit] / 1e3,
        cores * _CPU_HIGHEST_GHZ * _CPU_BYTES_PER_CLOCK,
    )


def _cpu_flags() -> set[str]:
    with (
        contextlib.suppress(OSError),
        open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            if line.startswith(("flags", "Features")):
                return set(line.partition(":")[2].split())
    return set()


def _best_seconds(call: Callable[[], object], calls: int = 1) -> float:
    """The least seconds a call took, after one to warm up; of ``calls`` in a row each."""
    call()
    best, spent = float("inf"), 0.0
    while spent < _TARGET_SECONDS:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        elapsed = time.perf_counter() - start
        best, spent = min(best, elapsed / calls), spent + elapsed
    return best


# -- CUDA ---------------------------------------------------------------------------------


def _cuda(index: int) -> dict[str, Any]:
    from kernels.evaluate.timing.cuda_tools import CudaTools

    tools = CudaTools(index)
    properties = torch.cuda.get_device_properties(index)
    copy_bytes = min(4 << 30, properties.total_memory // 8)
    source = torch.empty(copy_bytes, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    gbps = 2 * copy_bytes / (_graph_us(tools, _bind(target.copy_, source), 4) / 1e6) / 1e9
    del source, target
    # Read and written within half of the cache, so that it stays there.
    words = max(tools.l2_bytes, 4 << 20) // 16
    near, far = torch.ones(words, device="cuda"), torch.ones(words, device="cuda")
    within = _graph_us(tools, _bind(torch.mul, near, 1.5, out=far), _GRAPH_CALLS)
    short = torch.zeros(1, device="cuda")
    launch_us = _graph_us(tools, lambda: short.fill_(1.0), _GRAPH_CALLS)
    tflops = _matrix_rates(tools)
    operations, memory_gbps, cache_gbps = cuda_bounds(
        properties.multi_processor_count, (properties.major, properties.minor), *_clocks(tools.uuid or index)
    )
    return {
        "tflops": tflops,
        "gbps": gbps,
        "launch_us": launch_us,
        "cache_gbps": max(gbps, 2 * near.nbytes / (within / 1e6) / 1e9),
        "cache_bytes": tools.l2_bytes,
        "bound_tflops": operations,
        "bound_gbps": memory_gbps,
        "bound_cache_gbps": cache_gbps,
    }


def cuda_bounds(
    units: int, capability: tuple[int, int], sm_mhz: int, memory_mhz: int, bus_bits: int
) -> tuple[float, float, float]:
    """TOP/s, GB/s of memory and GB/s of cache that no kernel passes; 0 for what is not known of the GPU.

    Clocks are the highest the GPU has; memory moves two words of the bus in one clock.
    """
    per_clock = _DENSEST_PER_CLOCK.get(capability, 0)
    return (
        units * sm_mhz * per_clock / 1e6,
        memory_mhz * 2 * bus_bits / 8 / 1e3,
        units * sm_mhz * _SM_BYTES_PER_CLOCK / 1e3,
    )


def _clocks(device: int | str) -> tuple[int, int, int]:
    """The highest clocks of multiprocessors and memory in MHz, and the bus in bits; 0 for unknown."""
    try:
        with opened(device) as gpu:
            return gpu.max_sm_mhz(), gpu.max_memory_mhz(), gpu.bus_bits()
    except Unavailable:
        return 0, 0, 0


def _matrix_rates(tools: Any) -> dict[str, float]:
    rates = {}
    for name, make in _products().items():
        # A precision this GPU or this torch does not have is left out of the table.
        with kept(), contextlib.suppress(RuntimeError, NotImplementedError, ValueError):
            # Not allow_tf32, which after fp32_precision can be set and no longer read.
            torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
            size = _MATRIX["cuda"] // (4 if name == "float64" else 1)
            call = make(size)
            call()
            torch.cuda.synchronize()
            rates[name] = 2 * size**3 / (_graph_us(tools, call, 4) / 1e6) / 1e12
    return rates


def _products() -> dict[str, Callable[[int], Callable[[], object]]]:
    """A square matrix product for each precision, given its size."""

    def plain(dtype: torch.dtype) -> Callable[[int], Callable[[], object]]:
        def make(size: int) -> Callable[[], object]:
            left, right = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
            return _bind(torch.mm, left, right)

        return make

    def int8(size: int) -> Callable[[], object]:
        left, right = (torch.randint(-8, 8, (size, size), device="cuda").to(torch.int8) for _ in range(2))
        return _bind(torch._int_mm, left, right.t())

    def fp8(size: int) -> Callable[[], object]:
        left, right = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device="cuda")
        return _bind(
            torch._scaled_mm,
            left,
            right.t(),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return {
        "float64": plain(torch.float64),
        "float32": plain(torch.float32),
        "tf32": plain(torch.float32),
        "float16": plain(torch.float16),
        "bfloat16": plain(torch.bfloat16),
        "int8": int8,
        "float8_e4m3fn": fp8,
    }


def _graph_us(tools: Any, call: Callable[[], object], calls: int) -> float:
    """The least microseconds of a call inside a replayed graph of ``calls`` of them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    start, end = tools.event(), tools.event()
    best, spent = float("inf"), 0.0
    while spent < _TARGET_SECONDS:
        tools.delay(200.0)
        tools.record(start)
        graph.replay()
        tools.record(end)
        tools.wait()
        elapsed = tools.elapsed_us(start, end)
        best, spent = min(best, elapsed), spent + elapsed / 1e6
    return best / calls


def _bind(function: Callable[..., object], *values: Any, **named: Any) -> Callable[[], object]:
    return lambda: function(*values, **named)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        torch.set_num_threads(int(sys.argv[2]))
    print(json.dumps(measure(sys.argv[1])))
