"""An empty cache for each test of the JIT, and a way to run a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jit_support import child_environment


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory that this process and its children use."""
    path = tmp_path / "cache"
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(path))
    return path


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``code`` in a fresh interpreter that finds the toolkit and these tests; it must succeed."""

    def run(code: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=child_environment(**environment),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check:
            assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run
