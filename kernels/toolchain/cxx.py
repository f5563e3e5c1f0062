"""Finds the C++ compiler, and ninja, which runs it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.errors import ToolchainError
from kernels.toolchain.asking import output_of, remembered, version_of

__all__ = ["Compiler", "find_cxx", "find_ninja", "install_cxx"]


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, and what ``--version`` calls it."""

    path: str
    version: str


def find_cxx() -> Compiler:
    """The C++ compiler: ``$CXX``, else c++, g++ or clang++ on PATH or in the environment's own bin.

    Raises :class:`ToolchainError` when there is none.
    """
    for name in _cxx_names():
        path = shutil.which(name) or shutil.which(name, path=os.path.join(sys.prefix, "bin"))
        if path is None:
            continue
        version = remembered("c++", path, _cxx_version)
        if version:
            return Compiler(path, version)
    asked = os.environ.get("CXX")
    if asked:
        raise ToolchainError(
            f"CXX={asked} names no working C++ compiler", "unset CXX, or point it at g++ or clang++"
        )
    raise ToolchainError("no C++ compiler found (looked for c++, g++, clang++ on PATH)", install_cxx())


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
    first = output_of([path, "--version"]).strip().splitlines()
    number = output_of([path, "-dumpfullversion", "-dumpversion"]).strip()
    return f"{first[0]} [{number}]" if first and number else ""


_INSTALL_CXX = {
    "apt-get": "apt-get install -y g++",
    "dnf": "dnf install -y gcc-c++",
    "yum": "yum install -y gcc-c++",
    "apk": "apk add g++",
    "pacman": "pacman -S gcc",
    "zypper": "zypper install gcc-c++",
}


def install_cxx() -> str:
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
        if path and os.access(path, os.X_OK) and remembered("ninja", path, version_of):
            return path
    raise ToolchainError(
        "no ninja found (on PATH, beside this Python, or in the ninja package)", "pip install ninja"
    )


def _ninja_candidates() -> Iterator[str | None]:
    yield shutil.which("ninja")
    yield os.path.join(os.path.dirname(sys.executable or ""), "ninja")
    try:
        import ninja
    except ImportError:
        return
    yield os.path.join(ninja.BIN_DIR, "ninja")
