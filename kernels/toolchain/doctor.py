"""Finds what a build needs: a C++ compiler, ninja, and a CUDA toolkit that fits torch.

Nothing here imports torch at module level, and nothing spawns a process unless
asked for a version that is not remembered: a warm start reads a few file stamps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernels.device import cuda_arch, peek_cuda_arch
from kernels.errors import ToolchainError
from kernels.paths import cache_directory, replace_file

__all__ = [
    "Check",
    "Compiler",
    "CudaToolkit",
    "diagnose",
    "find_cuda",
    "find_cxx",
    "find_ninja",
    "torch_cuda_major",
]


@dataclass(frozen=True)
class Check:
    """One line of ``python -m kernels doctor``; ``fix`` is empty when ``ok``."""

    name: str
    ok: bool
    required: bool
    detail: str
    fix: str


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, and what ``--version`` calls it."""

    path: str
    version: str


@dataclass(frozen=True)
class CudaToolkit:
    """A CUDA toolkit: ``home/bin/nvcc``, its version and the architectures it compiles for.

    ``archs`` are the numbers after ``compute_`` in ascending order of capability,
    such as ``("75", "80", "90", "90a", ...)``. ``origin`` says how it was found.
    """

    home: str
    version: str
    build: str
    archs: tuple[str, ...]
    origin: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


# -- what a tool said about itself, remembered by the file it is ------------------------


def _remembered(question: str, tool: str, ask: Callable[[str], Any]) -> Any:
    """``ask(tool)``, or its answer from last time while the file ``tool`` is unchanged.

    Answers live in the cache directory, one small file each, so that no compiler is
    started to learn its version. A file that cannot be read or written only costs that.
    """
    real = os.path.realpath(tool)
    if "cache" in os.path.basename(real):
        return ask(tool)  # ccache and its like: the file says nothing of the compiler behind it
    status = os.stat(real)
    stamp = json.dumps([question, tool, real, status.st_mtime_ns, status.st_size])
    name = hashlib.sha256(stamp.encode()).hexdigest()[:24] + ".json"
    path = os.path.join(cache_directory(), "tools", name)
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        if stored["stamp"] == stamp:
            return stored["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent or damaged: ask again
    answer = ask(tool)
    if answer:  # a tool that failed may work the next time
        replace_file(path, json.dumps({"stamp": stamp, "answer": answer}))
    return answer


def _output(command: list[str]) -> str:
    """Standard output and error of ``command``; empty when it cannot run or fails."""
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.decode("utf-8", "replace") if result.returncode == 0 else ""


# -- C++ ----------------------------------------------------------------------------------


def find_cxx() -> Compiler:
    """The C++ compiler: ``$CXX``, else c++, g++ or clang++ on PATH or in the environment's own bin.

    Raises :class:`ToolchainError` when there is none.
    """
    for name in _cxx_names():
        path = shutil.which(name) or shutil.which(name, path=os.path.join(sys.prefix, "bin"))
        if path is None:
            continue
        version = _remembered("c++", path, _cxx_version)
        if version:
            return Compiler(path, version)
    asked = os.environ.get("CXX")
    if asked:
        raise ToolchainError(
            f"CXX={asked} names no working C++ compiler", "unset CXX, or point it at g++ or clang++"
        )
    raise ToolchainError("no C++ compiler found (looked for c++, g++, clang++ on PATH)", _install_cxx())


def _cxx_names() -> list[str]:
    asked = os.environ.get("CXX")
    if not asked:
        return ["c++", "g++", "clang++", *sorted(_conda_compilers())]
    # `CXX="ccache g++"`: torch puts ccache in front by itself; the compiler is what counts.
    words = shlex.split(asked)
    while len(words) > 1 and os.path.basename(words[0]) in ("ccache", "sccache", "distcc"):
        words.pop(0)
    return words[:1]


def _conda_compilers() -> Iterator[str]:
    # conda's compilers carry their target in their name, and CXX is set only by activation.
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.join(sys.prefix, "bin")):
            if re.fullmatch(r"\w+-conda-linux-gnu-c\+\+", name):
                yield name


def _cxx_version(path: str) -> str:
    first = _output([path, "--version"]).strip().splitlines()
    number = _output([path, "-dumpfullversion", "-dumpversion"]).strip()
    return f"{first[0]} [{number}]" if first and number else ""


_INSTALL_CXX = {
    "apt-get": "apt-get install -y g++",
    "dnf": "dnf install -y gcc-c++",
    "yum": "yum install -y gcc-c++",
    "apk": "apk add g++",
    "pacman": "pacman -S gcc",
    "zypper": "zypper install gcc-c++",
}


def _install_cxx() -> str:
    """The command that installs a C++ compiler here."""
    for manager, command in _INSTALL_CXX.items():
        if shutil.which(manager):
            return command
    return "install g++ with your system's package manager"


# -- ninja --------------------------------------------------------------------------------


def find_ninja() -> str:
    """The path of a ninja: on PATH, beside this Python, or inside the ninja package.

    Raises :class:`ToolchainError` when there is none.
    """
    for path in _ninja_candidates():
        if path and os.access(path, os.X_OK) and _remembered("ninja", path, _version):
            return path
    raise ToolchainError(
        "no ninja found (on PATH, beside this Python, or in the ninja package)", "pip install ninja"
    )


def _version(tool: str) -> str:
    return _output([tool, "--version"]).strip()


def _ninja_candidates() -> Iterator[str | None]:
    yield shutil.which("ninja")
    yield os.path.join(os.path.dirname(sys.executable or ""), "ninja")
    try:
        import ninja
    except ImportError:
        return
    yield os.path.join(ninja.BIN_DIR, "ninja")


# -- CUDA ---------------------------------------------------------------------------------


def torch_cuda_major() -> int:
    """The CUDA major version torch was built with.

    Raises :class:`ToolchainError` for a torch without CUDA, naming what it is.
    """
    import torch

    if getattr(torch.version, "hip", None):
        raise ToolchainError(
            f"torch {torch.__version__} is built for ROCm; CUDA kernels need a CUDA build of torch",
            "install a CUDA build of torch, or keep the tensors on the CPU",
        )
    if torch.version.cuda is None:
        raise ToolchainError(
            f"torch {torch.__version__} is built for CPU only; CUDA kernels need a CUDA build of torch",
            "pip install --force-reinstall torch (a CUDA build), or keep the tensors on the CPU",
        )
    return int(torch.version.cuda.split(".")[0])


def find_cuda() -> CudaToolkit:
    """The CUDA toolkit to build with: the first whose major version is torch's.

    Looks at ``CUDA_HOME`` and ``CUDA_PATH``, nvcc on PATH (through symlinks and
    wrapper scripts), the conda environment, NVIDIA's packages in site-packages, and
    the usual system folders. Raises :class:`ToolchainError`.
    """
    wanted = torch_cuda_major()
    misfits = []
    for toolkit in _cuda_toolkits(wanted):
        if toolkit.major == wanted:
            return toolkit
        misfits.append(f"{toolkit.version} in {toolkit.home} ({toolkit.origin})")
    fix = (
        "pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl]', "
        f"or install CUDA {wanted} and set CUDA_HOME to its folder"
    )
    if misfits:
        raise ToolchainError(
            f"no nvcc of CUDA {wanted}, which this torch is built for; found " + "; ".join(misfits),
            fix,
        )
    raise ToolchainError(
        f"no CUDA compiler (nvcc) of CUDA {wanted} found: not in CUDA_HOME, on PATH, in the conda "
        "environment, in site-packages, or in /usr/local",
        fix,
    )


def _cuda_toolkits(wanted: int) -> Iterator[CudaToolkit]:
    seen = set()
    for home, origin in _cuda_homes(wanted):
        real = os.path.realpath(home)
        if real in seen:
            continue
        seen.add(real)
        toolkit = _toolkit(home, origin)
        if toolkit is not None:
            yield toolkit


def _cuda_homes(wanted: int) -> Iterator[tuple[str, str]]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield os.path.abspath(os.environ[variable]), variable
    nvcc = shutil.which("nvcc")
    if nvcc:
        home = _remembered("home", nvcc, _home_of)
        if not os.path.isdir(home):
            home = _home_of(nvcc)  # moved since, behind an unchanged wrapper
        if home:
            yield home, "nvcc on PATH"
    if os.environ.get("CONDA_PREFIX"):
        yield os.environ["CONDA_PREFIX"], "conda"
    yield sys.prefix, "this environment"
    for folder in _site_packages():
        yield os.path.join(folder, "nvidia", f"cu{wanted}"), "site-packages"
    for folder in _SYSTEM_FOLDERS:
        yield folder, folder
        with contextlib.suppress(OSError):
            parent = os.path.dirname(folder)
            for name in sorted(os.listdir(parent), reverse=True):
                if name.startswith(f"cuda-{wanted}"):
                    yield os.path.join(parent, name), parent


# Where system packages put it; versions beside it are looked at too.
_SYSTEM_FOLDERS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr")


def _site_packages() -> list[str]:
    """Folders that may hold ``nvidia/``: torch's own first, since torch pins what is beside it."""
    import torch

    beside_torch = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
    return list(
        dict.fromkeys(
            [beside_torch, *(p for p in sys.path if p.endswith(("site-packages", "dist-packages")))]
        )
    )


def _has_headers(home: str) -> bool:
    if os.path.exists(os.path.join(home, "include", "cuda_runtime.h")):
        return True
    with contextlib.suppress(OSError):
        targets = os.path.join(home, "targets")  # conda keeps them here
        return any(
            os.path.exists(os.path.join(targets, t, "include", "cuda_runtime.h")) for t in os.listdir(targets)
        )
    return False


def _home_of(nvcc: str) -> str:
    """The toolkit that an nvcc belongs to; a symlink or a wrapper script may stand elsewhere."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    if _has_headers(home):
        return home
    # A wrapper script: nvcc itself prints its root among the steps it would run.
    match = re.search(
        r"^#\$ TOP=(.*)$", _output([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull]), re.MULTILINE
    )
    return os.path.realpath(match.group(1).strip()) if match else ""


def _toolkit(home: str, origin: str) -> CudaToolkit | None:
    nvcc = os.path.join(home, "bin", "nvcc")
    if not os.access(nvcc, os.X_OK) or not _has_headers(home):
        return None
    said = _remembered("nvcc", nvcc, _nvcc_facts)
    if not said:
        return None
    return CudaToolkit(home, said["version"], said["build"], tuple(said["archs"]), origin)


def _nvcc_facts(nvcc: str) -> dict[str, Any]:
    text = _output([nvcc, "--version"])
    version = re.search(r"release (\d+\.\d+)", text)
    build = re.search(r"V(\d+\.\d+\.\d+)", text)
    if not version:
        return {}
    archs = re.findall(r"compute_(\w+)", _output([nvcc, "--list-gpu-arch"]))
    return {
        "version": version.group(1),
        "build": build.group(1) if build else version.group(1),
        "archs": archs,
    }


# -- doctor -------------------------------------------------------------------------------


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
    return f"{_version(ninja)}, {ninja}"


def _cxx_detail() -> str:
    compiler = find_cxx()
    source = "#include <optional>\n#include <string>\nstd::optional<std::string> f() { return {}; }\n"
    said = _try_to_compile([compiler.path, "-std=c++17", "-shared", "-fPIC"], "probe.cpp", source)
    if said:
        raise ToolchainError(f"{compiler.path} cannot build a C++17 library: {said}", _install_cxx())
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
