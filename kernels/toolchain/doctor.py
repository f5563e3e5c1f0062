"""Checks what a build needs by trying it: the lines of ``python -m kernels doctor``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels.device import cuda_arch, peek_cuda_arch
from kernels.errors import ToolchainError
from kernels.paths import cache_directory
from kernels.toolchain.asking import version_of
from kernels.toolchain.cuda import find_cuda
from kernels.toolchain.cxx import find_cxx, find_ninja, install_cxx

__all__ = ["Check", "diagnose"]


@dataclass(frozen=True)
class Check:
    """One line of ``python -m kernels doctor``; ``fix`` is empty when ``ok``."""

    name: str
    ok: bool
    required: bool
    detail: str
    fix: str


def diagnose() -> list[Check]:
    """Every condition a build or a call depends on, checked now; compiles two tiny programs.

    ``required`` marks what nothing works without on this machine: a CUDA compiler is
    required where there is a GPU and a torch that drives it.
    """
    has_gpu = _gpu_is_wanted()
    return [
        *_check_python(),
        _check_torch(),
        _checked("ninja", True, _ninja_detail),
        _checked("C++ compiler", True, _cxx_detail),
        _check_gpu(has_gpu),
        _checked("CUDA compiler", has_gpu, _cuda_detail),
        _check_cache(),
        *_check_name_clash(),
    ]


def _checked(name: str, required: bool, detail: Callable[[], str]) -> Check:
    try:
        return Check(name, True, required, detail(), "")
    except ToolchainError as error:
        return Check(name, False, required, error.missing, error.fix)


def _check_python() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = sys.version_info >= (3, 10) and sys.platform.startswith("linux")
    fix = "" if supported else "use Python 3.10 or newer on Linux"
    yield Check("Python", supported, True, f"{version} on {sys.platform}, {sys.executable}", fix)


def _check_torch() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch", False, True, f"cannot be imported: {error}", "pip install 'torch>=2.11'")
    hip = getattr(torch.version, "hip", None)
    kind = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    detail = f"{torch.__version__} ({kind})"
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < (2, 11):
        return Check("torch", False, True, detail, "pip install 'torch>=2.11'")
    return Check("torch", True, True, detail, "")


def _ninja_detail() -> str:
    ninja = find_ninja()
    return f"{version_of(ninja)}, {ninja}"


def _cxx_detail() -> str:
    compiler = find_cxx()
    source = "#include <optional>\n#include <string>\nstd::optional<std::string> f() { return {}; }\n"
    said = _try_to_compile([compiler.path, "-std=c++17", "-shared", "-fPIC"], "probe.cpp", source)
    if said:
        raise ToolchainError(f"{compiler.path} cannot build a C++17 library: {said}", install_cxx())
    return f"{compiler.version.splitlines()[0]}, {compiler.path}"


def _cuda_detail() -> str:
    toolkit = find_cuda()
    nvcc = os.path.join(toolkit.home, "bin", "nvcc")
    source = "__global__ void f(float* x) { *x = 1; }\nvoid g(float* x) { f<<<1, 1>>>(x); }\n"
    # With the C++ compiler the builds use, whose version nvcc may not accept.
    said = _try_to_compile([nvcc, "-c", "-ccbin", find_cxx().path], "probe.cu", source)
    if said:
        fix = "pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl]', or set CUDA_HOME to a complete toolkit"
        if "unsupported GNU version" in said:
            fix = "install a g++ this nvcc accepts and set CXX to it"
        raise ToolchainError(f"nvcc {toolkit.version} in {toolkit.home} cannot compile a kernel: {said}", fix)
    return f"{toolkit.build}, {toolkit.home} ({toolkit.origin})"


def _try_to_compile(command: list[str], name: str, source: str) -> str:
    """The compiler's first complaint about ``source``; empty when it compiles."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-doctor-") as folder:
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(source)
        try:
            result = subprocess.run(
                [*command, name, "-o", "probe.out"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=300,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
    if result.returncode == 0:
        return ""
    lines = result.stderr.decode("utf-8", "replace").splitlines()
    return next(
        (line for line in lines if "error" in line or "fatal" in line), lines[0] if lines else "no output"
    )


def _gpu_is_wanted() -> bool:
    """Whether there is a GPU and a torch built to drive it."""
    try:
        import torch
    except (ImportError, OSError):
        return False
    return torch.version.cuda is not None and peek_cuda_arch() is not None


def _check_gpu(has_gpu: bool) -> Check:
    name = "GPU"
    if not has_gpu:
        if peek_cuda_arch() is None:
            return Check(name, True, False, "none: kernels run on the CPU", "")
        return Check(
            name, False, False, "present, and this torch is not built for it", "install a CUDA build of torch"
        )
    import torch

    if not torch.cuda.is_available():
        detail = f"present, and torch {torch.__version__} cannot use it: is the driver older than its CUDA?"
        fix = f"update the NVIDIA driver, or install a torch for an older CUDA than {torch.version.cuda}"
        return Check(name, False, False, detail, fix)
    arch = cuda_arch(torch.cuda.current_device())
    detail = f"{torch.cuda.get_device_name()} ({arch})"
    try:
        archs = find_cuda().archs
    except ToolchainError:
        return Check(name, True, False, detail, "")  # the CUDA compiler has a line of its own
    oldest = min((int(re.sub(r"\D", "", a)) for a in archs), default=0)
    if int(re.sub(r"\D", "", arch)) < oldest:
        fix = "use a newer GPU, a torch built for an older CUDA with its toolkit, or the CPU"
        return Check(
            name, False, True, f"{detail} is older than this nvcc compiles for (sm_{oldest} and newer)", fix
        )
    return Check(name, True, False, detail, "")


def _check_cache() -> Check:
    directory = cache_directory()
    fix = "set KERNELS_CACHE_DIR to a writable folder on a file system that allows executables"
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix="doctor-"):
            flags = os.statvfs(directory)
    except OSError as error:
        detail = f"{directory} cannot be written ({error.strerror}); builds last for one process"
        return Check("cache", False, False, detail, fix)
    if flags.f_flag & getattr(os, "ST_NOEXEC", 0):
        return Check("cache", False, True, f"{directory} is mounted noexec: no library loads from there", fix)
    free_mb = flags.f_bavail * flags.f_frsize // 1_000_000
    if free_mb < 50:
        return Check("cache", False, False, f"{directory} has {free_mb} MB left", fix)
    return Check("cache", True, False, f"{directory}, {free_mb} MB free", "")


def _check_name_clash() -> Iterator[Check]:
    import importlib.metadata

    try:
        other = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return
    import kernels

    yield Check(
        "import name",
        False,
        False,
        f"Hugging Face's kernels {other} is installed too; `import kernels` here is kernelwright "
        f"{kernels.__version__} ({os.path.dirname(os.path.abspath(kernels.__file__))})",
        "keep the two in separate environments (pip uninstall kernels)",
    )
