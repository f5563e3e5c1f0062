"""Where and when a measurement is made: device, driver, versions, date, command."""

from __future__ import annotations

import ctypes
import platform
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone

import torch

from kernels.device import describe
from kernels.evaluate.result import Environment

__all__ = ["describe_environment"]


def describe_environment(device: str, command: Sequence[str]) -> Environment:
    """The machine as seen from ``device``: ``"cpu"``, or ``"cuda"`` for the current GPU."""
    on_cuda = device == "cuda"
    return Environment(
        device=describe(device, torch.cuda.current_device() if on_cuda else 0).name,
        driver=_driver_version() if on_cuda else "",
        cuda=str(torch.version.cuda) if on_cuda else "",
        torch=str(torch.__version__),
        python=platform.python_version(),
        threads=torch.get_num_threads(),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(command),
    )


def _driver_version() -> str:
    """The NVIDIA driver's own version ("580.65.06"); NVML comes with the driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "unknown"
    version = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0:
        return "unknown"
    try:
        if nvml.nvmlSystemGetDriverVersion(version, ctypes.c_uint(len(version))) != 0:
            return "unknown"
    finally:
        nvml.nvmlShutdown()
    return version.value.decode()
