"""What the tests of the JIT share beside the tiny problem."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def child_environment(**changes: str) -> dict[str, str]:
    """This environment with the toolkit and these tests on Python's path."""
    path = os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "KERNELS_PREBUILD": "0", **changes}


needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None and not Path("/usr/local/cuda").exists(), reason="needs nvcc"
)
