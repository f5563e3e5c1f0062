"""Runs CUDA kernels of the toolkit on the CPU: compiles their sources against ``tests/emulator``.

Slow (a few seconds for some hundred rows), and blind to speed, to instructions that do not exist
and to rounding inside the tensor cores. It sees wrong indices and layouts, missing waits, deadlocks
and writes past the end of shared memory or of the workspace.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from attention_params import Allocate, AttentionParams, attention_params
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
EMULATOR = Path(__file__).resolve().parent / "emulator"
KERNELS = ROOT / "kernels"

# What the emulator leaves as C++ that only nvcc reads.
REWRITTEN = (
    (
        re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];"),
        r"\1* \2 = reinterpret_cast<\1*>(emulator::dynamic_smem);",
    ),
    (
        re.compile(r"(\w+)<<<(.+?), (.+?), (.+?), stream>>>\((.*?)\);"),
        r"emulator::launch(\1, \2, \3, \4, \5);",
    ),
)

ENTRY = """
#include "{source}"

extern "C" int32_t emulated_launch(const AttentionParams* params, uint64_t seed, int32_t processors) {{
  emulator::draw.seed(seed);
  emulator::processors = processors;
  const int32_t code = {package}::prepare<{arguments}>();
  return code != 0 ? code : {package}::launch<{arguments}>(*params, nullptr);
}}
"""

CANARY = 0x5A
CANARY_BYTES = 4096


def build(
    package: str,
    source: str,
    arguments: Sequence[str],
    folder: Path,
    changes: Mapping[str, str] | None = None,
    *,
    checked: bool = False,
    arch: int = 900,
) -> Path:
    """The kernel library of ``source`` (below ``kernels/``) for the CPU, built in ``folder`` once.

    ``changes`` replaces lines of the sources, each found exactly once: what a test spoils on purpose.
    A ``checked`` one ends the process at accesses outside of global memory, misaligned ones and undefined
    arithmetic; it loads only where :func:`address_sanitizer` came first (``LD_PRELOAD``).
    ``arch`` is compiled for, as in ``__CUDA_ARCH_LIST__``: a block's shared memory can depend on it.
    """
    tree = folder / "source"
    with _guard:
        _copy_sources(tree, changes or {})
    entry = ENTRY.format(source=source, package=package, arguments=", ".join(arguments))
    how = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if checked else ["-O2"]
    how.append(f"-D__CUDA_ARCH_LIST__={arch}")
    name = f"emulated_{hashlib.sha256(' '.join((entry, *how)).encode()).hexdigest()[:12]}"
    library = folder / f"{name}.so"
    if not library.exists():
        (folder / f"{name}.cpp").write_text(entry, encoding="utf-8")
        command = ["c++", "-std=c++17", *how, "-fPIC", "-shared", "-w"]
        command += ["-include", str(EMULATOR / "cuda_on_cpu.h"), f"-I{EMULATOR}", f"-I{tree}"]
        command += [str(folder / f"{name}.cpp"), "-o", str(library)]
        subprocess.run(command, check=True)
    return library


_guard = threading.Lock()


def _copy_sources(tree: Path, changes: Mapping[str, str]) -> None:
    """The kernels' sources in ``tree``, as C++ compilers read them; once."""
    if tree.is_dir():
        return
    left = dict(changes)
    for path in (*KERNELS.glob("cuda/**/*.cu*"), *KERNELS.glob("bindings/attention_params.h")):
        text = path.read_text(encoding="utf-8")
        for pattern, replacement in REWRITTEN:
            text = pattern.sub(replacement, text)
        for line in [line for line in left if line in text]:
            assert text.count(line) == 1, f"{line!r} is there {text.count(line)} times"
            text = text.replace(line, left.pop(line))
        target = tree / path.relative_to(KERNELS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    assert not left, f"no source has {list(left)}"


def address_sanitizer() -> str:
    """The compiler's AddressSanitizer library, or nothing where it has none."""
    command = ["c++", "-print-file-name=libasan.so"]
    path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return path if Path(path).is_absolute() else ""


def run(
    library: Path,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *scales: Tensor,
    seed: int = 1,
    processors: int = 2,
) -> tuple[Tensor, Tensor]:
    """One launch on CPU tensors: the output, and the workspace as the kernels left it, uint8.

    q [batch, seqlen_q, num_heads, head_dim], k and v [batch, seqlen_k, num_kv_heads, head_dim], scales three
    float32 [num_heads] or none; the output as the package's operator gives it. ``seed`` decides in which
    order the threads go on, ``processors`` how many blocks a persistent kernel has. Raises ``RuntimeError``
    for an error code and for a write outside the workspace; what the emulator itself finds ends the process.
    """
    out = torch.full(q.shape, math.nan, dtype=torch.float32 if scales else q.dtype)
    asked: list[Workspace] = []

    def allocate(_: int | None, size: int) -> int:
        asked.append(Workspace(size))
        return asked[-1].address

    params = attention_params(q, k, v, out, scales)
    params.allocate = Allocate(allocate)
    launch = ctypes.CDLL(str(library)).emulated_launch
    launch.argtypes = [ctypes.POINTER(AttentionParams), ctypes.c_uint64, ctypes.c_int32]
    code = launch(ctypes.byref(params), seed, processors)
    if code:
        raise RuntimeError(f"the launch failed with code {code}")
    if not all(workspace.is_intact() for workspace in asked):
        raise RuntimeError("a write outside the workspace")
    return out, torch.cat([torch.empty(0, dtype=torch.uint8), *(each.content for each in asked)])


class Workspace:
    """``size`` bytes of NaN, aligned to 256 as torch's allocator aligns, between bytes that are watched."""

    def __init__(self, size: int) -> None:
        self._memory = torch.full((size + 2 * CANARY_BYTES,), CANARY, dtype=torch.uint8)
        self._start = CANARY_BYTES - self._memory.data_ptr() % 256
        self.content = self._memory[self._start : self._start + size]
        self.content.fill_(0xFF)
        self.address = self.content.data_ptr()

    def is_intact(self) -> bool:
        """Whether nothing was written beside it."""
        around = (self._memory[: self._start], self._memory[self._start + len(self.content) :])
        return all(bool((each == CANARY).all()) for each in around)
