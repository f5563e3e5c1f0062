"""Which machine code a device runs, and what the device is.

``cpu_arch`` and ``cuda_arch`` name architectures the way a ``Request`` carries them.
``peek_cuda_capability`` and ``peek_cuda_arch`` ask the driver's management library, so
that a background build can start without initialising CUDA in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re

__all__ = [
    "DeviceSpec",
    "cpu_arch",
    "cuda_arch",
    "cuda_arch_name",
    "describe",
    "peek_cuda_arch",
    "peek_cuda_capability",
]


class DeviceSpec:
    """A device that kernels run on.

    ``units`` are multiprocessors on a GPU and torch's threads on a CPU;
    ``memory_bytes`` and ``l2_bytes`` are 0 where unknown. Written out rather than a
    dataclass: making one takes a tenth of what a warm start may.
    """

    __slots__ = ("arch", "device", "index", "l2_bytes", "memory_bytes", "name", "units")

    def __init__(
        self, *, device: str, index: int, name: str, arch: str, units: int, memory_bytes: int, l2_bytes: int
    ) -> None:
        self.device = device
        self.index = index
        self.name = name
        self.arch = arch
        self.units = units
        self.memory_bytes = memory_bytes
        self.l2_bytes = l2_bytes

    def __repr__(self) -> str:
        return f"DeviceSpec({', '.join(f'{slot}={getattr(self, slot)!r}' for slot in self.__slots__)})"


def cpu_arch() -> str:
    """This CPU's level: ``"x86-64-v4"``, ``"x86-64-v3"``, ``"x86-64"``, or the machine's name elsewhere.

    Follows torch's own view (``ATEN_CPU_CAPABILITY`` included), so that both run the
    same instruction sets.
    """
    machine = os.uname().machine.lower()
    if machine not in ("x86_64", "amd64"):
        return {"arm64": "aarch64"}.get(machine, machine)
    import torch

    capability = torch.backends.cpu.get_cpu_capability().upper()
    if capability.startswith("AVX512"):
        return "x86-64-v4"
    return "x86-64-v3" if capability.startswith("AVX2") else "x86-64"


def cuda_arch_name(text: str) -> str:
    """``"9.0a"``, ``"90a"``, ``"sm_90a"``, ``"9.0"`` or ``"90"`` as ``"sm_90a"``.

    Hopper is always ``sm_90a``: its tensor-core instructions exist only there, and a
    Hopper GPU runs nothing else. Raises ``ValueError``.
    """
    match = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})\.?(\d)([af]?)", text.strip().lower())
    if not match:
        raise ValueError(f"{text!r} is no CUDA architecture; write it as 9.0a, 90a or sm_90a")
    major, minor, suffix = match.groups()
    number = f"{int(major)}{minor}"
    return f"sm_{number}{suffix or ('a' if number == '90' else '')}"


def arch_number(arch: str) -> int:
    """80 for ``"sm_80"``, 90 for ``"sm_90a"``, 0 for what is no CUDA architecture."""
    found = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    return int(found[1]) if found else 0


def cuda_arch(index: int) -> str:
    """The architecture of CUDA device ``index``, such as ``"sm_90a"``. Initialises CUDA."""
    return _cuda_arch(index)


@functools.lru_cache(maxsize=64)
def _cuda_arch(index: int) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    return cuda_arch_name(f"{major}.{minor}")


def describe(device: str, index: int = 0) -> DeviceSpec:
    """What ``device`` (``"cpu"`` or ``"cuda"``) number ``index`` is. Initialises CUDA for ``"cuda"``."""
    import torch

    if device == "cuda":
        found = torch.cuda.get_device_properties(index)
        return DeviceSpec(
            device="cuda",
            index=index,
            name=found.name,
            arch=cuda_arch(index),
            units=found.multi_processor_count,
            memory_bytes=found.total_memory,
            l2_bytes=getattr(found, "L2_cache_size", 0),
        )
    return DeviceSpec(
        device="cpu",
        index=0,
        name=_cpu_name(),
        arch=cpu_arch(),
        units=torch.get_num_threads(),
        memory_bytes=_memory_bytes(),
        l2_bytes=0,
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux, or /proc is hidden
    return os.uname().machine


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


# -- NVML -----------------------------------------------------------------------------------


def peek_cuda_arch() -> str | None:
    """The architecture of :func:`peek_cuda_capability`, such as ``"sm_90a"``, or None."""
    capability = peek_cuda_capability()
    if capability is not None:
        with contextlib.suppress(ValueError):
            return cuda_arch_name(capability)
    return None


def peek_cuda_capability() -> str | None:
    """The compute capability (``"9.0"``) of the first visible CUDA device, or None; never initialises CUDA.

    Asks NVML, whose order is by bus id while CUDA's default is fastest first: in a
    machine with different GPUs this is a guess, good enough to build ahead with.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = "0" if visible is None else visible.split(",")[0].strip()
    if first in ("", "-1"):
        return None
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        handle = ctypes.c_void_p()
        if first.isdigit():
            failed = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(first)), ctypes.byref(handle))
        else:
            failed = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
        major, minor = ctypes.c_int(), ctypes.c_int()
        if failed or nvml.nvmlDeviceGetCudaComputeCapability(
            handle, ctypes.byref(major), ctypes.byref(minor)
        ):
            return None
        return f"{major.value}.{minor.value}"
    finally:
        nvml.nvmlShutdown()
