"""Reads what compilers print: errors with the source around them, and ptxas's resource report."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.errors import CompileError, KernelsError, ToolchainError
from kernels.jit.source import Source
from kernels.toolchain import Compiler, CudaToolkit

__all__ = ["Resources", "failure", "parse_resources"]

# Words of a compiler that cannot work at all here, whatever the source says.
_BROKEN = (
    (
        r"fatal error: cuda_runtime\.h: No such file",
        "the CUDA toolkit in {home} has no headers (cuda_runtime.h)",
    ),
    (r"fatal error: crt/\S+: No such file", "the CUDA toolkit in {home} has no crt headers"),
    (
        r"cicc: not found|cannot find.*libdevice|No such file.*cicc",
        "the CUDA toolkit in {home} has no nvvm (cicc)",
    ),
    (r"unsupported GNU version", "nvcc {nvcc} does not accept the C++ compiler {cxx}"),
    (r"cannot find -lcudart", "the CUDA toolkit in {home} has no libcudart"),
)
_AT = re.compile(r"^(?P<file>.+?)[(:](?P<line>\d+)(?::\d+)?[):]+ *(?:fatal )?error", re.MULTILINE)


def failure(
    name: str, source: Source, cxx: Compiler, cuda: CudaToolkit | None, log: str, account: str
) -> KernelsError:
    """The exception for a failed build of the specialisation ``name``.

    ``log`` is the compiler's own output, ``account`` what load_inline made of ninja's.
    A :class:`ToolchainError` where no source could have compiled, else a
    :class:`CompileError` with the numbered source around the first error.
    """
    said = _without_reports(log).strip() or _from_ninja(account)
    where = {
        "home": cuda.home if cuda else "",
        "nvcc": cuda.version if cuda else "",
        "cxx": cxx.version,
    }
    for pattern, words in _BROKEN:
        if re.search(pattern, said):
            fix = "pip install 'cuda-toolkit[nvcc,crt,nvvm,cccl]', or set CUDA_HOME to a complete toolkit"
            if "{cxx}" in words:
                fix = "install an older g++ and set CXX to it"
            return ToolchainError(words.format(**where), fix)
    match = _AT.search(said)
    excerpt = _excerpt(source, match["file"], int(match["line"])) if match else ""
    return CompileError(name, _with_real_names(source, said), excerpt)


def _without_reports(log: str) -> str:
    noise = re.compile(r"ptxas info|compilation terminated\.|\d+ errors? detected in the compilation of")
    return "\n".join(line for line in log.splitlines() if not noise.match(line))


def _from_ninja(account: str) -> str:
    """The linker's words, out of ninja's account: all but its progress and the command lines."""
    lines = account.splitlines()
    return "\n".join(line for line in lines if not re.match(r"\[\d+/\d+\] |ninja: |FAILED: ", line)).strip()


def _with_real_names(source: Source, text: str) -> str:
    labels = "|".join(map(re.escape, source.names))
    return re.sub(
        rf"(?<![\w/.-])({labels})(?=[(:,\s])", lambda match: str(source.names[match.group(1)]), text
    )


def _excerpt(source: Source, label: str, line: int, around: int = 3) -> str:
    """Numbered lines around ``line``, marked with an arrow; empty for a file that is not the toolkit's."""
    if label == source.tail_label:
        lines, name = source.tail.split("\n")[2:], label
    elif label in source.names:
        path = source.names[label]
        lines, name = path.read_text(encoding="utf-8", errors="replace").split("\n"), str(path)
    else:
        return ""
    numbered = [
        f"{'>' if number == line else ' '} {number:4d} | {text}"
        for number, text in enumerate(lines, 1)
        if abs(number - line) <= around
    ]
    return "\n".join([f"{name}:{line}", *numbered])


# -- ptxas's report --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel: registers per thread, bytes of shared memory per
    block, and bytes per thread of stack and of register spills."""

    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


_ENTRY = re.compile(r"Compiling entry function '(?P<kernel>[^']+)' for")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def parse_resources(log: str) -> tuple[Resources, ...]:
    """ptxas's report (``-Xptxas=-v``) as one entry per kernel, in its order."""
    found = []
    kernel, frame = "", (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            kernel, frame = match["kernel"], (0, 0, 0)
        elif match := _FRAME.search(line):
            # Also printed for device functions that were not inlined; the entry's own
            # report is the last before its registers.
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif kernel and (match := _USED.search(line)):
            found.append(Resources(kernel, int(match[1]), int(match[2] or 0), *frame))
            kernel = ""
    return tuple(found)
