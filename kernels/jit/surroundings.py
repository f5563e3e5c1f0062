"""What ``load_inline`` finds around it: put right while builds run, and put back after the last.

``load_inline`` reads the process's environment and its own module's globals. It takes
the folder above nvcc for the CUDA home, looks for ninja on PATH only, and writes paths
into ninja files unquoted. What is right already is left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.errors import CacheError
from kernels.jit.warm import import_guard
from kernels.toolchain import Compiler, CudaToolkit

__all__ = ["cpp_extension", "prepared", "safe_folder"]

# -- importing -----------------------------------------------------------------------------


def cpp_extension() -> Any:
    """``torch.utils.cpp_extension``, imported without initialising CUDA and without a guess on the log."""
    with import_guard:
        module = sys.modules.get("torch.utils.cpp_extension")
        if module is not None:
            return module
        logger = logging.getLogger("torch.utils.cpp_extension")
        logger.addFilter(_is_no_guess)
        # Its import asks torch whether there is a GPU; through NVML that initialises nothing.
        variable = "PYTORCH_NVML_BASED_CUDA_CHECK"
        before = _get("environment", variable)
        _set("environment", variable, "1")
        try:
            import torch.utils.cpp_extension as module
        finally:
            _set("environment", variable, before)
            logger.removeFilter(_is_no_guess)
        return module


def _is_no_guess(record: logging.LogRecord) -> bool:
    return "No CUDA runtime is found" not in record.getMessage()


# -- paths -----------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]*")  # what ninja, a shell and nvcc all read as itself


@functools.lru_cache(maxsize=64)
def _plain(path: str) -> str:
    """``path``, or a symbolic link to it whose own path is plain.

    The links serve all builds of this process and go with it.
    """
    if _PLAIN.fullmatch(path):
        return path
    folder = tempfile.mkdtemp(dir=_plain_temporary_folder(), prefix="kernelwright-links-")
    atexit.register(_remove_if_owner, folder, os.getpid())
    # The name of the file stays: nvcc and gcc act on the name they are called by.
    link = os.path.join(folder, re.sub(r"[^A-Za-z0-9_.+-]", "_", os.path.basename(path)) or "link")
    os.symlink(path, link)
    return link


def _remove_if_owner(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _plain_temporary_folder() -> str:
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        if _PLAIN.fullmatch(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise CacheError(
        "no temporary folder with a plain path (letters, digits, _ . / + -) can be written; set TMPDIR to one"
    )


@contextlib.contextmanager
def safe_folder(private: Path) -> Iterator[Path]:
    """``private`` when its path is plain, else a temporary folder whose path is."""
    if _PLAIN.fullmatch(str(private)):
        yield private
        return
    folder = tempfile.mkdtemp(dir=_plain_temporary_folder(), prefix="kernelwright-build-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- settings ----------------------------------------------------------------------------------

_Setting = tuple[str, str]  # ("environment", a variable) or ("cpp_extension", a global)


@contextlib.contextmanager
def prepared(cxx: Compiler, cuda: CudaToolkit | None, ninja: str) -> Iterator[Any]:
    """``torch.utils.cpp_extension`` with everything around it right for these tools."""
    module = cpp_extension()
    with _settings.hold(_needed(module, cxx, cuda, ninja)):
        yield module


def _needed(module: Any, cxx: Compiler, cuda: CudaToolkit | None, ninja: str) -> dict[_Setting, Any]:
    need: dict[_Setting, Any] = {}
    environment = os.environ
    if shutil.which("ninja") != ninja:
        folder = _plain(os.path.dirname(ninja))
        need["environment", "PATH"] = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    compiler = _plain(cxx.path)
    if environment.get("CXX", compiler) != compiler or shutil.which("c++") != compiler:
        need["environment", "CXX"] = compiler
    # A private folder and one attempt: nobody reads the dependencies nvcc would list.
    need["environment", "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES"] = "1"
    for name in ("_TORCH_PATH", "TORCH_LIB_PATH"):
        path = getattr(module, name)
        if _plain(path) != path:
            need["cpp_extension", name] = _plain(path)
    headers = sysconfig.get_path("include", scheme="posix_prefix")
    if headers and _plain(headers) != headers:
        need["cpp_extension", "sysconfig"] = _PlainSysconfig(_plain(headers))
    if cuda is not None:
        need["cpp_extension", "CUDA_HOME"] = _plain(cuda.home)
        need["cpp_extension", "CUDNN_HOME"] = None
        if not _PLAIN.fullmatch(tempfile.gettempdir()):
            need["environment", "TMPDIR"] = _plain_temporary_folder()  # for nvcc's intermediate files
        # nvcc compiles the host's part with what CC names, else with the g++ on PATH.
        if "CC" in environment or shutil.which("g++") is None or "CXX" in environment:
            need["environment", "CC"] = compiler
    return need


@dataclass(frozen=True)
class _PlainSysconfig:
    """Stands in for ``sysconfig`` inside cpp_extension, which asks it for Python's headers alone."""

    include: str

    def get_path(self, name: str, scheme: str | None = None) -> str:
        return self.include


@dataclass
class _Held:
    value: Any
    before: Any
    users: int = 0


class _Settings:
    """Process-wide settings that builds share while they run, put back after the last.

    Builds that need different values for the same setting take turns.
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.held: dict[_Setting, _Held] = {}

    @contextlib.contextmanager
    def hold(self, needed: Mapping[_Setting, Any]) -> Iterator[None]:
        with self.condition:
            while any(s in self.held and self.held[s].value != value for s, value in needed.items()):
                self.condition.wait()
            for setting, value in needed.items():
                held = self.held.get(setting)
                if held is None:
                    held = self.held[setting] = _Held(value, _get(*setting))
                    _set(*setting, value)
                held.users += 1
        try:
            yield
        finally:
            with self.condition:
                for setting in needed:
                    held = self.held[setting]
                    held.users -= 1
                    if held.users == 0:
                        self.put_back(setting)
                self.condition.notify_all()

    def put_back(self, setting: _Setting) -> None:
        held = self.held.pop(setting)
        if _get(*setting) == held.value:  # else someone else has set it meanwhile
            _set(*setting, held.before)


def _get(holder: str, name: str) -> Any:
    return os.environ.get(name) if holder == "environment" else getattr(cpp_extension(), name)


def _set(holder: str, name: str, value: Any) -> None:
    if holder == "cpp_extension":
        setattr(cpp_extension(), name, value)
    elif value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


_settings = _Settings()


# A thread that imports this module can be waited for by one that forks already: of these hooks, the one
# before the fork is then not run. Whether it was is known by the thread that holds the settings.
_forking: int | None = None


def _before_fork() -> None:
    global _forking
    _settings.condition.acquire()
    _forking = threading.get_ident()


def _after_fork_in_parent() -> None:
    global _forking
    if _forking == threading.get_ident():
        _forking = None
        _settings.condition.release()


def _after_fork_in_child() -> None:
    global _forking, _settings
    # The builds that hold these settings run in the parent alone.
    settings, _settings = _settings, _Settings()
    _forking = None
    for setting in list(settings.held):
        settings.put_back(setting)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
