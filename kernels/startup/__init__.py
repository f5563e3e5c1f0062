"""What a first call costs: cold, warm, and the usual way beside them.

Each sample is a fresh process. ``first_call`` and ``plain_load_inline`` are the
programs they run; each prints one line of JSON whose ``seconds`` is the time from
``import torch`` done to the first result.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernels.evaluate.result import StartupResult

__all__ = ["PACKAGE", "measure"]

# The problem that plain_load_inline computes, hence the one to set beside it.
PACKAGE = "gqa_attn"


def measure(
    package: str,
    device: str,
    *,
    build_arch: str = "",
    runs: int = 3,
    plain: bool = True,
    command: Sequence[str] = (),
) -> StartupResult:
    """Times the first ``ModelNew`` call of ``package`` in fresh processes on ``device``.

    ``runs`` cold ones, each with an empty cache, then at least five warm ones, then
    one ``load_inline`` as people write it unless ``plain`` is false. ``build_arch``
    (``"sm_90a"``) builds for a GPU that need not be here, and calls nothing.
    """
    from kernels.evaluate.environment import describe_environment
    from kernels.evaluate.timing.processes import time_processes

    first = [sys.executable, "-m", "kernels.startup.first_call", package, device]
    first += ["--build", build_arch] if build_arch else []
    usual = [sys.executable, "-m", "kernels.startup.plain_load_inline", device]
    with tempfile.TemporaryDirectory(prefix="kernels-bench-") as folder:
        # Empty counts as unset: a user's Python keeps bytecode, and a warm start reads it.
        usual_python = {"PYTHONDONTWRITEBYTECODE": ""}
        caches = [
            {"KERNELS_CACHE_DIR": str(Path(folder, f"cold-{run}")), **usual_python}
            for run in range(max(1, runs))
        ]
        rows = [
            time_processes("cold: empty cache", first, caches),
            time_processes("warm: cached", first, [caches[0]] * max(5, runs)),
        ]
        if plain:
            rows.append(
                time_processes("plain load_inline", usual, [_plain_environment(folder, device, build_arch)])
            )
    what = f"built for {build_arch}, not called" if build_arch else f"first call on {device}"
    return StartupResult(
        problem=package,
        what=f"{what}, from 'import torch' done",
        rows=tuple(rows),
        environment=describe_environment("cpu" if build_arch else device, command),
    )


def _plain_environment(folder: str, device: str, build_arch: str) -> dict[str, str]:
    """What ``load_inline`` needs set by hand: ninja on PATH, a CUDA home that is one, an architecture."""
    environment = {
        "TORCH_EXTENSIONS_DIR": str(Path(folder, "plain")),
        "PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")]),
    }
    if device == "cuda":
        from kernels.toolchain import find_cuda

        environment["CUDA_HOME"] = find_cuda().home
    if build_arch:
        number = build_arch.removeprefix("sm_")
        suffix = number[-1] if number[-1].isalpha() else ""
        digits = number.removesuffix(suffix)
        environment["TORCH_CUDA_ARCH_LIST"] = f"{digits[:-1]}.{digits[-1]}{suffix}"
    return environment
