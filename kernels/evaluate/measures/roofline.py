"""A time against what the machine can do: the nearest limit, the share of it, and the time no program beats.

Two different figures, for two different uses. ``limit_us`` is what a very good kernel takes:
the operations and bytes of the case at the rates this machine was *measured* to reach at that dtype.
``floor_us`` is a proof: less time is impossible, and a clock that shows less was tampered
with. So the floor takes only what every correct program must do, and rates that nothing
on the device passes:

- Operations, and bytes read, only as a problem package states them. A count of the
  reference's operations proves nothing: a program may skip what a mask hides, multiply
  matrices in another order, or leave out a product that a later sum makes superfluous. Inputs need
  not be read at all where the result does not depend on them.
- Bytes written, always: outputs are checked, so each was written.
- Bytes may come from a cache and stay there. Only what exceeds it must pass the memory
  bus; the rest passes between cache and multiprocessors.
- Of the bound from clocks and widths and twice the measured rate the higher counts, so that a
  measurement on a busy machine makes no honest kernel look impossible.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from kernels.device import describe
from kernels.evaluate.evaluation import Ceilings, Roofline
from kernels.evaluate.measures.memory import storage_bytes
from kernels.evaluate.timing.nvml import identify
from kernels.evaluate.unavailable import Unavailable
from kernels.evaluate.workers.isolation import inherited

__all__ = ["PACKAGE", "TORCH", "MachineCeilings", "ceilings", "count", "floor_us", "place"]

# What `counted_by` says: only the first is a statement about every correct program.
PACKAGE = "problem package"
TORCH = "torch's flop counter"

# Changed when what is measured changes, so that old files are measured anew.
_VERSION = 1
_MEASURED_MARGIN = 2.0
_TIMEOUT_SECONDS = 300.0
# The folder that holds this package: a process started elsewhere must find the same one.
_HOME = str(Path(__file__).resolve().parents[3])

# The unit that serves a dtype torch multiplies in no unit of its own.
_SERVED_BY = {
    "uint8": "int8",
    "float8_e5m2": "float8_e4m3fn",
    "complex64": "float32",
    "complex128": "float64",
}


@dataclass(frozen=True)
class MachineCeilings(Ceilings):
    """Ceilings with what a floor needs: the cache's bandwidth and size, and the bounds nothing passes.

    ``cache_bytes`` is the L2 of a GPU, 0 for a CPU, whose caches are taken to hold
    everything. A bound is 0 where it is not known.
    """

    cache_gbps: float = 0.0
    cache_bytes: int = 0
    bound_tflops: float = 0.0
    bound_gbps: float = 0.0
    bound_cache_gbps: float = 0.0


def ceilings(device: str, cache_folder: str, *, again: bool = False) -> MachineCeilings:
    """What ``"cpu"`` or ``"cuda:N"`` reaches: from the cache, else measured now in a process of its own.

    A file for each device, driver, torch and number of threads, under ``cache_folder``.
    Nothing else should run on the device while it is measured. ``again`` measures once more
    and keeps the better of old and new, one rate at a time: what was measured on a busy
    machine is too low. Raises :class:`Unavailable` when it cannot be measured.
    """
    path = os.path.join(cache_folder, "ceilings", f"{_key(device)}.json")
    stored: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # absent or damaged: measure
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        found = _from_mapping(stored)
        if not again:
            return found
    measured = _better(_measure(device), stored if again else {})
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(measured, file)
    os.replace(temporary, path)
    return _from_mapping(measured)


def _better(new: dict[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """``new`` with what ``old`` has better: a machine reaches what it was once seen to reach."""
    try:
        _from_mapping(old)
    except (ValueError, TypeError, KeyError):
        return new
    names = {*new["tflops"], *old["tflops"]}
    return {
        **new,
        "tflops": {name: max(each["tflops"].get(name, 0.0) for each in (new, old)) for name in sorted(names)},
        "gbps": max(new["gbps"], old["gbps"]),
        "cache_gbps": max(new["cache_gbps"], old["cache_gbps"]),
        "launch_us": min(new["launch_us"], old["launch_us"]),
    }


def _key(device: str) -> str:
    kind = device.partition(":")[0]
    if kind == "cuda":
        facts = _cuda_facts(device)
    elif device == "cpu":
        here = describe("cpu")
        facts = [here.name, here.arch, torch.get_num_threads(), sorted(os.sched_getaffinity(0))]
    else:
        raise ValueError(f"device={device!r} is not supported; supported: 'cpu', 'cuda', 'cuda:N'")
    text = json.dumps([_VERSION, kind, str(torch.__version__), *facts])
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _cuda_facts(device: str) -> list[Any]:
    """Which GPU and driver; asked of NVML, since the judge's own process leaves CUDA alone."""
    index = device.partition(":")[2]
    return list(identify(int(index or 0)))


def _measure(device: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "kernels.evaluate.measures.ceilings", device]
    if device == "cpu":
        command.append(str(torch.get_num_threads()))
    path = [_HOME, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            env={**inherited(), "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"measuring {device} took longer than {_TIMEOUT_SECONDS:.0f} s") from error
    if finished.returncode != 0:
        words = finished.stderr.strip().splitlines()
        raise Unavailable(f"measuring {device} failed: {words[-1] if words else 'no message'}")
    measured: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return measured


def _from_mapping(stored: Mapping[str, Any]) -> MachineCeilings:
    found = MachineCeilings(**{field.name: stored[field.name] for field in fields(MachineCeilings)})
    if not found.tflops or found.gbps <= 0:
        raise ValueError("no rates in it")
    return found


def count(model: Callable[..., object], inputs: Sequence[Any]) -> tuple[int, int, str]:
    """Operations that torch's counter sees in ``model(*inputs)``, bytes of inputs and outputs, and by whom.

    The counter knows products, convolutions and attention; where there are none the
    count is 0. Each input storage and parameter is read once and each output written
    once. Neither is a floor: see the top of this file.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs = model(*inputs)
    read = [list(inputs), model] if isinstance(model, torch.nn.Module) else [list(inputs)]
    return counter.get_total_flops(), storage_bytes(read) + storage_bytes(outputs, besides=read), TORCH


def place(
    flops: int,
    least_bytes: int,
    counted_by: str,
    dtype: str,
    time_us: float,
    ceilings: Ceilings,
    *,
    cache: str = "cold",
    written_bytes: int = 0,
) -> Roofline:
    """``time_us`` of one call beside what this machine could do at best.

    ``dtype`` is that of the arithmetic ("float32", "tf32", "bfloat16", ...). With
    ``cache="warm"`` data that fits into the L2 is held against the cache's bandwidth.
    ``written_bytes`` is the size of outputs that share no memory with an input: all
    that the floor counts when ``counted_by`` is not :data:`PACKAGE`. ``share`` above 1 means
    that the kernel does better than torch's own routes did when the ceiling was measured.
    """
    rate = ceilings.tflops.get(dtype) or ceilings.tflops.get(_SERVED_BY.get(dtype, "float32"), 0.0)
    gbps = ceilings.gbps
    if isinstance(ceilings, MachineCeilings) and cache == "warm" and least_bytes <= ceilings.cache_bytes:
        gbps = max(gbps, ceilings.cache_gbps)
    limits = {
        "memory": least_bytes / gbps / 1e3,
        "compute": flops / rate / 1e6 if rate else 0.0,
        "launch": ceilings.launch_us,
    }
    limit = max(limits, key=limits.__getitem__)
    proven = counted_by == PACKAGE
    return Roofline(
        flops=flops,
        least_bytes=least_bytes,
        counted_by=counted_by,
        time_us=time_us,
        achieved_tflops=flops / time_us / 1e6,
        achieved_gbps=least_bytes / time_us / 1e3,
        limit=limit,
        limit_us=limits[limit],
        share=limits[limit] / time_us,
        floor_us=floor_us(
            flops if proven else 0, max(least_bytes, written_bytes) if proven else written_bytes, ceilings
        ),
        ceilings=ceilings,
    )


def floor_us(flops: int, must_bytes: int, ceilings: Ceilings) -> float:
    """Microseconds below which no program does ``flops`` operations and moves ``must_bytes``.

    0 where the ceilings say nothing about bounds (a plain :class:`Ceilings`).
    """
    if not isinstance(ceilings, MachineCeilings):
        return 0.0
    highest = max(ceilings.bound_tflops, _MEASURED_MARGIN * max(ceilings.tflops.values(), default=0.0))
    # A GPU whose densest unit is unknown may have one that torch does not use.
    compute = flops / highest / 1e6 if ceilings.bound_tflops else 0.0
    bounds = [compute]
    if ceilings.bound_cache_gbps:
        within = max(ceilings.bound_cache_gbps, _MEASURED_MARGIN * ceilings.cache_gbps)
        bounds.append(must_bytes / within / 1e3)
    if ceilings.bound_gbps and ceilings.cache_bytes:
        beyond = max(0, must_bytes - ceilings.cache_bytes)
        memory = max(ceilings.bound_gbps, _MEASURED_MARGIN * ceilings.gbps)
        bounds.append(beyond / memory / 1e3)
    return max(bounds)
