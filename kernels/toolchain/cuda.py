"""Finds the CUDA toolkit that fits torch."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels.errors import ToolchainError
from kernels.toolchain.asking import output_of, remembered

__all__ = ["CudaToolkit", "find_cuda", "torch_cuda_major"]


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
        home = remembered("home", nvcc, _home_of)
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
        r"^#\$ TOP=(.*)$", output_of([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull]), re.MULTILINE
    )
    return os.path.realpath(match.group(1).strip()) if match else ""


def _toolkit(home: str, origin: str) -> CudaToolkit | None:
    nvcc = os.path.join(home, "bin", "nvcc")
    if not os.access(nvcc, os.X_OK) or not _has_headers(home):
        return None
    said = remembered("nvcc", nvcc, _nvcc_facts)
    if not said:
        return None
    return CudaToolkit(home, said["version"], said["build"], tuple(said["archs"]), origin)


def _nvcc_facts(nvcc: str) -> dict[str, Any]:
    text = output_of([nvcc, "--version"])
    version = re.search(r"release (\d+\.\d+)", text)
    build = re.search(r"V(\d+\.\d+\.\d+)", text)
    if not version:
        return {}
    archs = re.findall(r"compute_(\w+)", output_of([nvcc, "--list-gpu-arch"]))
    return {
        "version": version.group(1),
        "build": build.group(1) if build else version.group(1),
        "archs": archs,
    }
