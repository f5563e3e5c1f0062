"""The little of NVIDIA's management library that measurements ask, through ctypes.

NVML comes with the driver and needs no CUDA context, so a process that never touches
the GPU can watch it. ``python -m kernels.evaluate.timing.nvml DEVICE`` watches the memory in
use, from a process of its own, for :mod:`kernels.evaluate.measures.memory`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import time
from collections.abc import Iterator

from kernels.evaluate.unavailable import Unavailable

__all__ = ["Device", "identify", "opened", "throttle_names"]

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_TEMPERATURE_GPU = 0
_UUID_BYTES = 96

# Bits of nvmlDeviceGetCurrentClocksEventReasons; idle and application clocks are no hindrance.
_THROTTLE = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def throttle_names(bits: int) -> tuple[str, ...]:
    """What held the clocks back, from NVML's bit mask; empty when nothing did."""
    return tuple(name for bit, name in _THROTTLE.items() if bits & bit)


class Device:
    """One GPU as NVML sees it. Every method raises :class:`Unavailable` when the driver will not say."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    def _ask(self, names: tuple[str, ...], value: ctypes._SimpleCData, *arguments: object) -> int:
        """The number that the first of ``names`` the driver has writes into ``value``."""
        for name in names:
            function = getattr(self._library, name, None)
            if function is None:
                continue
            code = function(self._handle, *arguments, ctypes.byref(value))
            if code != 0:
                raise Unavailable(f"{name} failed: {_words(self._library, code)}")
            return value.value
        raise Unavailable(f"this driver has no {' or '.join(names)}", "update the NVIDIA driver")

    def sm_mhz(self) -> int:
        return self._ask(("nvmlDeviceGetClockInfo",), ctypes.c_uint(), ctypes.c_int(_SM_CLOCK))

    def memory_mhz(self) -> int:
        return self._ask(("nvmlDeviceGetClockInfo",), ctypes.c_uint(), ctypes.c_int(_MEMORY_CLOCK))

    def max_sm_mhz(self) -> int:
        return self._ask(("nvmlDeviceGetMaxClockInfo",), ctypes.c_uint(), ctypes.c_int(_SM_CLOCK))

    def max_memory_mhz(self) -> int:
        return self._ask(("nvmlDeviceGetMaxClockInfo",), ctypes.c_uint(), ctypes.c_int(_MEMORY_CLOCK))

    def bus_bits(self) -> int:
        return self._ask(("nvmlDeviceGetMemoryBusWidth",), ctypes.c_uint())

    def temperature_c(self) -> int:
        return self._ask(("nvmlDeviceGetTemperature",), ctypes.c_uint(), ctypes.c_int(_TEMPERATURE_GPU))

    def power_w(self) -> float:
        return self._ask(("nvmlDeviceGetPowerUsage",), ctypes.c_uint()) / 1000

    def throttle_bits(self) -> int:
        # The second name is the first one's before driver 535.
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self._ask(names, ctypes.c_ulonglong())

    def text(self, name: str) -> str:
        """What the function ``name`` writes about the GPU: its UUID, its name."""
        words = ctypes.create_string_buffer(_UUID_BYTES)
        code = getattr(self._library, name)(self._handle, words, ctypes.c_uint(_UUID_BYTES))
        if code != 0:
            raise Unavailable(f"{name} failed: {_words(self._library, code)}")
        return words.value.decode()

    def driver(self) -> str:
        """The driver's version."""
        words = ctypes.create_string_buffer(_UUID_BYTES)
        code = self._library.nvmlSystemGetDriverVersion(words, ctypes.c_uint(_UUID_BYTES))
        if code != 0:
            raise Unavailable(f"nvmlSystemGetDriverVersion failed: {_words(self._library, code)}")
        return words.value.decode()

    def used_bytes(self) -> int:
        """Device memory in use by everyone."""
        memory = _Memory()
        code = self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        if code != 0:
            raise Unavailable(f"nvmlDeviceGetMemoryInfo failed: {_words(self._library, code)}")
        return memory.used


@contextlib.contextmanager
def opened(device: int | str) -> Iterator[Device]:
    """NVML's view of a GPU, given by its CUDA index or by its UUID (``"GPU-..."``).

    An index is looked up in ``CUDA_VISIBLE_DEVICES``. CUDA counts the fastest GPU first
    unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and NVML never does: where GPUs differ, give
    the UUID. Raises :class:`Unavailable`.
    """
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise Unavailable("NVML (libnvidia-ml.so.1) is not here", "install the NVIDIA driver") from error
    code = library.nvmlInit_v2()
    if code != 0:
        raise Unavailable(f"NVML does not start: {_words(library, code)}")
    try:
        yield Device(library, _handle(library, device))
    finally:
        library.nvmlShutdown()


def identify(device: int | str) -> tuple[str, str, str]:
    """Name, UUID and driver version of a GPU. Raises :class:`Unavailable`."""
    with opened(device) as gpu:
        return gpu.text("nvmlDeviceGetName"), gpu.text("nvmlDeviceGetUUID"), gpu.driver()


def _handle(library: ctypes.CDLL, device: int | str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    name = _visible(device, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if isinstance(name, int):
        code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(name), ctypes.byref(handle))
    else:
        code = library.nvmlDeviceGetHandleByUUID(_whole_uuid(library, name).encode(), ctypes.byref(handle))
    if code != 0:
        raise Unavailable(f"NVML does not know GPU {device}: {_words(library, code)}")
    return handle


def _visible(device: int | str, visible: str | None) -> int | str:
    """CUDA's ``device`` as NVML counts: an index, or a UUID (possibly its beginning)."""
    if isinstance(device, str) or visible is None:
        return device
    names = [name.strip() for name in visible.split(",")]
    if device >= len(names) or not names[device]:
        raise Unavailable(f"CUDA_VISIBLE_DEVICES={visible} shows no GPU {device}")
    return int(names[device]) if names[device].isdigit() else names[device]


def _whole_uuid(library: ctypes.CDLL, start: str) -> str:
    """CUDA accepts the beginning of a UUID where it is unique; NVML wants all of it."""
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
            continue
        if library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(_UUID_BYTES)) != 0:
            continue
        if uuid.value.decode().startswith(start):
            return uuid.value.decode()
    return start


def _words(library: ctypes.CDLL, code: int) -> str:
    describe = library.nvmlErrorString
    describe.restype = ctypes.c_char_p
    return f"{describe(ctypes.c_int(code)).decode()} ({code})"


def watch_memory(device: str) -> None:
    """Follows the memory in use until standard input closes, then prints the lowest and highest bytes seen.

    Prints one line when it has begun.
    """
    with opened(device) as gpu:
        lowest = highest = gpu.used_bytes()
        print("watching", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            used = gpu.used_bytes()
            lowest, highest = min(lowest, used), max(highest, used)
            time.sleep(0)  # the other side's threads may need this core
    print(lowest, highest, flush=True)


if __name__ == "__main__":
    watch_memory(sys.argv[1])
