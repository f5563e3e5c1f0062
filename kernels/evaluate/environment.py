"""Where and when a measurement is made: device, driver, versions, date, command."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone

import torch

from kernels.device import describe
from kernels.evaluate.result import Environment
from kernels.evaluate.timing.nvml import opened
from kernels.evaluate.unavailable import Unavailable

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
    """The NVIDIA driver's own version ("580.65.06")."""
    try:
        with opened(0) as gpu:
            return gpu.driver()
    except Unavailable:
        return "unknown"
