"""How many bytes a call needs beyond its inputs and outputs.

On CUDA two sources are added up. torch's allocator counts what was asked of it: its
peak during a call, less what was there before and less the outputs. What is allocated
behind its back (``cudaMalloc``, driver pools) shows only as memory of the whole device, in
the driver's grain of 2 MiB: a process beside this one asks NVML for it all the time, since
memory that is taken and given back within one call never shows before or after it. What the
device gained beyond torch's reservations is ``direct_bytes``, the least of three times; where
it gains as much while no call is made, others use it, and nothing can be said. Without NVML only
what calls do not give back is seen. What a first
call takes directly and keeps cannot be told from the code that the driver loads then,
and does not count.

On the CPU ``allocator_bytes`` is the peak of torch's allocator, from its profiler's
records, and ``direct_bytes`` is the growth of the process's resident memory (the
high-water mark, reset before the call; freed memory is handed back to the system first, so
that its reuse shows too). Resident memory includes the allocator's, so the larger of the
two counts, not their sum.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from kernels.evaluate.evaluation import Memory
from kernels.evaluate.unavailable import Unavailable

__all__ = ["extra_bytes", "storage_bytes"]

Call = Callable[[], object]
# The smallest of so many counts: what else the process did meanwhile only adds.
_REPEATS = 3
# Long enough for the watcher, which looks some ten thousand times a second, to meet a short allocation.
_WATCH_SECONDS = 0.2
_MOST_WATCHED_CALLS = 200
_DRIVER_GRAIN = 2 << 20


def extra_bytes(call: Call, device: str, inputs: object = ()) -> Memory:
    """What ``call()`` needs on ``device`` (``"cpu"`` or ``"cuda"``, the current one).

    ``inputs`` is what the call reads, nested as it likes; its parameters too, if they
    are to count as inputs. The call runs several times. What its first run keeps
    (a workspace, a library's buffers) counts when that run happens in here, so hand
    over a call that has not run yet; what only the first run needs, such as tuning, does
    not count. Raises :class:`Unavailable`, and whatever the call raises.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is not supported; supported: 'cpu', 'cuda'")
    return _on_cuda(call, inputs) if device == "cuda" else _on_cpu(call, inputs)


def storage_bytes(value: object, besides: object = ()) -> int:
    """Bytes of the storages behind the tensors in a nested ``value``, each once; not those in ``besides``."""
    known = {storage.data_ptr() for storage in _storages(besides)}
    found = {storage.data_ptr(): storage.nbytes() for storage in _storages(value)}
    return sum(size for address, size in found.items() if address not in known)


def _storages(value: object) -> Iterator[torch.UntypedStorage]:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield value.untyped_storage()
        return
    if isinstance(value, torch.nn.Module):
        # Not its own attributes of these names: a candidate may keep other things under them.
        value = [*torch.nn.Module.parameters(value), *torch.nn.Module.buffers(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _storages(item)


# -- CUDA ---------------------------------------------------------------------------------


def _on_cuda(call: Call, inputs: object) -> Memory:
    torch.cuda.synchronize()
    key = "requested_bytes" if torch.cuda.get_allocator_backend() == "native" else "allocated_bytes"

    def allocated(which: str) -> int:
        return torch.cuda.memory_stats().get(f"{key}.all.{which}", 0)

    gc.collect()
    before = allocated("current")
    for _ in range(2):  # the first may build and tune; nothing it returns is kept
        call()
    torch.cuda.synchronize()
    counts = []
    for _ in range(_REPEATS):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        outputs = call()
        torch.cuda.synchronize()
        output_bytes = storage_bytes(outputs, besides=inputs)
        counts.append(max(0, allocated("peak") - before - output_bytes))
        del outputs
    direct = _direct_bytes(call)
    return Memory(
        input_bytes=storage_bytes(inputs),
        output_bytes=output_bytes,
        extra_bytes=min(counts) + (direct or 0),
        allocator_bytes=min(counts),
        direct_bytes=direct,
    )


def _direct_bytes(call: Call) -> int | None:
    """What calls take of the device beyond what torch's allocator reserves; None where others hide it."""
    found = []
    for _ in range(_REPEATS):
        found.append(_gained(lambda: _repeat(call)))
        if found[-1] < _DRIVER_GRAIN:
            return 0
    return min(found) if _gained(lambda: time.sleep(_WATCH_SECONDS)) < _DRIVER_GRAIN else None


def _gained(body: Callable[[], None]) -> int:
    """What the device gains while ``body`` runs, beyond what torch's allocator reserves."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    reserved = torch.cuda.memory_reserved()
    free_before = torch.cuda.mem_get_info()[0]
    try:
        with _watched() as watched:
            body()
        lowest, highest = watched
        gained = highest - lowest
    except Unavailable:
        body()
        gained = free_before - torch.cuda.mem_get_info()[0]
    return gained - (torch.cuda.max_memory_reserved() - reserved)


def _repeat(call: Call) -> None:
    begun = time.perf_counter()
    for _ in range(_MOST_WATCHED_CALLS):
        call()
        torch.cuda.synchronize()
        if time.perf_counter() - begun > _WATCH_SECONDS:
            return


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Fills the list with the lowest and highest bytes in use on the device while the body ran."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    name = f"GPU-{uuid}" if uuid is not None else str(torch.cuda.current_device())
    seen: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-m", "kernels.evaluate.timing.nvml", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],  # where `kernels` is found
    ) as watcher:
        assert watcher.stdout is not None and watcher.stdin is not None and watcher.stderr is not None
        try:
            if watcher.stdout.readline().strip() != "watching":
                lines = watcher.stderr.read().strip().splitlines()
                raise Unavailable(f"no watch on the device's memory: {lines[-1] if lines else 'no message'}")
            yield seen
            watcher.stdin.close()
            seen.extend(int(word) for word in watcher.stdout.read().split())
        finally:
            watcher.kill()


# -- CPU ----------------------------------------------------------------------------------


def _on_cpu(call: Call, inputs: object) -> Memory:
    first = _allocations(call, inputs)
    kept = max(0, first.held - first.output_bytes)
    call()
    steady = [_allocations(call, inputs) for _ in range(_REPEATS)]
    allocator = kept + min(max(0, seen.peak - seen.output_bytes) for seen in steady)
    resident = min(_resident_growth(call, inputs) for _ in range(_REPEATS))
    return Memory(
        input_bytes=storage_bytes(inputs),
        output_bytes=steady[-1].output_bytes,
        extra_bytes=max(allocator, resident),
        allocator_bytes=allocator,
        direct_bytes=resident,
    )


@dataclass(frozen=True)
class _Allocations:
    peak: int
    held: int  # when the call had returned, its outputs included
    output_bytes: int


def _allocations(call: Call, inputs: object) -> _Allocations:
    """What torch's CPU allocator gave out during a call, by the profiler's records."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        outputs = call()
    peak = held = 0
    for change in _memory_changes(profiler):
        held += change
        peak = max(peak, held)
    return _Allocations(peak, held, storage_bytes(outputs, besides=inputs))


def _memory_changes(profiler: profile) -> list[int]:
    """Bytes of every allocation (positive) and release (negative), in the order they happened."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-memory-") as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    found = [event for event in events if event.get("name") == "[memory]"]
    found.sort(key=lambda event: (event["ts"], event["args"].get("Ev Idx", 0)))
    return [int(event["args"]["Bytes"]) for event in found if event["args"]["Device Type"] == 0]


def _resident_growth(call: Call, inputs: object) -> int:
    """The peak of resident memory during a call, less what was there before and less the outputs."""
    gc.collect()
    # Free memory the C library keeps for later would hide what is taken from it.
    ctypes.CDLL(None).malloc_trim(0)
    _reset_high_water()
    before = _status_bytes("VmRSS")
    outputs = call()
    peak = _status_bytes("VmHWM")
    return max(0, peak - before - storage_bytes(outputs, besides=inputs))


def _reset_high_water() -> None:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError as error:
        raise Unavailable(f"the high-water mark of resident memory cannot be reset: {error}") from error


def _status_bytes(name: str) -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        match = re.search(rf"^{name}:\s+(\d+) kB$", file.read(), re.MULTILINE)
    if match is None:
        raise Unavailable(f"/proc/self/status has no {name}")
    return int(match.group(1)) * 1024
