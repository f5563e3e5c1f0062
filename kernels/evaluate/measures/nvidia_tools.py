"""Finds and runs NVIDIA's command line tools, and gives kernels their readable names."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.evaluate.unavailable import Unavailable
from kernels.evaluate.workers.isolation import inherited

__all__ = ["Finished", "demangle", "find", "read_log", "run"]

# Where installers leave what they do not put on PATH.
_FOLDERS = {
    "ncu": (
        "/opt/nvidia/nsight-compute/*",
        "/usr/local/cuda*/nsight-compute-*",
        "/usr/local/cuda*/bin",
        "/usr/lib/nsight-compute",
    ),
    "compute-sanitizer": ("/usr/local/cuda*/compute-sanitizer", "/usr/local/cuda*/bin"),
}
_ANYWHERE = ("/usr/local/cuda*/bin", "/opt/cuda/bin")
_HOME = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True)
class Finished:
    """What a tool said: its exit code (None when it was stopped after its time), output and errors."""

    code: int | None
    output: str
    errors: str


def find(name: str, fix: str) -> str:
    """The path of an NVIDIA tool: in the CUDA home, on PATH, beside triton's, or in the usual folders.

    Raises :class:`Unavailable` with ``fix`` when there is none.
    """
    for path in _candidates(name):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise Unavailable(f"{name} is not here (looked in CUDA_HOME, on PATH and in the usual folders)", fix)


def _candidates(name: str) -> Iterator[str]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home:
            yield os.path.join(home, "bin", name)
    on_path = shutil.which(name)
    if on_path:
        yield on_path
    for package, parts in (("nvidia", ("cu*", "bin")), ("triton", ("backends", "nvidia", "bin"))):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(glob.glob(os.path.join(folder, *parts, name)), reverse=True)
    for pattern in _FOLDERS.get(name, _ANYWHERE):
        for folder in sorted(glob.glob(pattern), reverse=True):
            yield os.path.join(folder, name)


def run(command: Sequence[str], seconds: float) -> Finished:
    """Runs a tool in a process group of its own, which is stopped as a whole after ``seconds``.

    Raises :class:`Unavailable` when it cannot be started.
    """
    # The tools start candidates too.
    environment = inherited()
    # A program of this toolkit's own is found wherever it is started from.
    environment["PYTHONPATH"] = os.pathsep.join([_HOME, *filter(None, [environment.get("PYTHONPATH")])])
    # cuobjdump starts nvdisasm by name, which may be nowhere else than beside it.
    beside = os.path.dirname(command[0])
    environment["PATH"] = os.pathsep.join(part for part in (environment.get("PATH", ""), beside) if part)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"{command[0]} does not start: {error}") from error
    code: int | None
    with process:
        try:
            output, errors = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            _stop_group(process)
            output, errors = process.communicate()
            code = None
        except BaseException:  # Ctrl-C among them: nothing of ours may stay behind
            _stop_group(process)
            raise
    return Finished(code, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    # Not reaped yet, so the number is still this process's own.
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


def read_log(path: str) -> str:
    """What a tool wrote to its log; empty when it wrote none."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def demangle(names: Sequence[str]) -> dict[str, str]:
    """Readable forms of mangled C++ names; a name stays as it is where there is no tool for it."""
    readable = {name: name for name in names}
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    mangled = sorted({name for name in names if name.startswith("_Z")})
    if tool is None or not mangled:
        return readable
    lines = subprocess.run(
        [tool], input="\n".join(mangled) + "\n", capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if len(lines) == len(mangled):
        readable.update(zip(mangled, lines, strict=True))
    return readable
