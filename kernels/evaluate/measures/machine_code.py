"""What a compiled kernel is made of: registers, shared memory, stack, local memory traffic, tensor-core use.

Read with cuobjdump from shared libraries and cubins, so the figures are those of the
code that runs, whoever compiled it. Spills leave no mark of their own in machine code:
``spill_stores`` and ``spill_loads`` count the instructions that write and read local memory (STL, LDL),
which a local array that is indexed at run time needs as well.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernels.evaluate.evaluation import KernelCode
from kernels.evaluate.measures.nvidia_tools import demangle, find, run
from kernels.evaluate.unavailable import Unavailable

__all__ = ["Code", "Resources", "parse_resources", "parse_sass", "read"]

FIX = "pip install 'cuda-toolkit[cuobjdump,nvdisasm]', or pip install triton, which brings both"
_SECONDS = 120.0

# HMMA, IMMA, DMMA, ... (one warp), HGMMA, QGMMA, ... (a warpgroup), UTCHMMA, ... (Blackwell). Not HFMA2.MMA.
_TENSOR_CORE = re.compile(r"(?:UTC)?[A-Z]G?MMA")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True)
class Resources:
    """What the compiler gave one kernel: registers a thread; bytes of static shared memory and of stack."""

    registers: int
    shared_bytes: int
    stack_bytes: int


@dataclass
class Code:
    """Counts over one kernel's instructions; those that only fill up (NOP) are left out."""

    instructions: int = 0
    local_stores: int = 0
    local_loads: int = 0
    tensor_core: Counter[str] = field(default_factory=Counter)


# By architecture ("" where the text names none) and the name in the library.
_Key = tuple[str, str]


def read(library_paths: Sequence[str]) -> tuple[KernelCode, ...]:
    """Every kernel in shared libraries, objects and cubins, by library and name.

    A file without device code adds nothing. Raises :class:`Unavailable` where there is no
    cuobjdump (or it fails), and ``FileNotFoundError`` for a path that is not there.
    """
    tool = find("cuobjdump", FIX)
    found: list[KernelCode] = []
    for path in library_paths:
        if not os.path.isfile(path):
            raise FileNotFoundError(path)
        resources = parse_resources(_said(tool, "-res-usage", path))
        code = parse_sass(_said(tool, "-sass", path))
        found += _joined(os.path.basename(path), resources, code)
    names = demangle([kernel.kernel for kernel in found])
    return tuple(
        KernelCode(**{**vars(kernel), "kernel": names[kernel.kernel]})
        for kernel in sorted(found, key=lambda kernel: (kernel.library, kernel.kernel, kernel.arch))
    )


def _said(tool: str, option: str, path: str) -> str:
    finished = run([tool, option, os.path.abspath(path)], _SECONDS)
    complaint = (finished.errors.strip() or finished.output.strip()).splitlines()
    if finished.code == 0:
        return finished.output
    if "does not contain device code" in " ".join(complaint):
        return ""
    if finished.code is None:
        raise Unavailable(f"cuobjdump {option} {path} took longer than {_SECONDS:.0f} s")
    raise Unavailable(f"cuobjdump {option} {path} failed: {complaint[0] if complaint else 'no message'}")


def _joined(library: str, resources: dict[_Key, Resources], code: dict[_Key, Code]) -> list[KernelCode]:
    kernels = []
    for (arch, name), counts in code.items():
        # A bare cubin's resources do not repeat its architecture.
        use = resources.get((arch, name)) or resources.get(("", name))
        kernels.append(
            KernelCode(
                kernel=name,
                library=library,
                arch=arch,
                registers=use.registers if use else None,
                shared_bytes=use.shared_bytes if use else None,
                stack_bytes=use.stack_bytes if use else None,
                spill_stores=counts.local_stores,
                spill_loads=counts.local_loads,
                instructions=counts.instructions,
                tensor_core=dict(counts.tensor_core),
            )
        )
    return kernels


def parse_resources(text: str) -> dict[_Key, Resources]:
    """``cuobjdump -res-usage``, by architecture and kernel."""
    found: dict[_Key, Resources] = {}
    arch = name = ""
    for line in text.splitlines():
        if match := re.match(r"\s*arch = (\S+)", line):
            arch = match.group(1)
        elif match := re.match(r"\s*Function (.+):\s*$", line):
            name = match.group(1)
        elif name and "REG:" in line:
            numbers = {key: int(value) for key, value in re.findall(r"(\w+)(?:\[\d+\])?:(\d+)", line)}
            found[arch, name] = Resources(numbers["REG"], numbers["SHARED"], numbers["STACK"])
            name = ""
    return found


def parse_sass(text: str) -> dict[_Key, Code]:
    """``cuobjdump -sass``, by architecture and kernel."""
    found: dict[_Key, Code] = {}
    arch, code = "", None
    for line in text.splitlines():
        if match := re.match(r"\s*code for (\S+)", line):
            arch, code = match.group(1), None
        elif match := re.match(r"\s*Function : (\S+)", line):
            code = found.setdefault((arch, match.group(1)), Code())
        elif code is not None and (match := _INSTRUCTION.match(line)):
            _count(code, match.group(1))
    return found


def _count(code: Code, opcode: str) -> None:
    if opcode == "NOP":
        return
    code.instructions += 1
    code.local_stores += opcode == "STL"
    code.local_loads += opcode == "LDL"
    if _TENSOR_CORE.fullmatch(opcode):
        code.tensor_core[opcode] += 1
