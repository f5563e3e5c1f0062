"""Lints C++ and CUDA, read as tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kernels.evaluate.evaluation import Finding
from kernels.evaluate.lint.collect import Sighting, findings
from kernels.evaluate.lint.names import TORCH_NAMESPACES
from kernels.evaluate.lint.patches import COPYING
from kernels.evaluate.lint.tokens import Token, tokens

__all__ = ["CPP_SUFFIXES", "lint_cpp", "sightings"]

CPP_SUFFIXES = frozenset((".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".hxx", ".inl"))

# Calls that no kernel's host code makes, by rule.
_CALLS = {
    "PTRACE_ATTACH": "process-memory",
    "ptrace": "process-memory",
    "process_vm_readv": "process-memory",
    "process_vm_writev": "process-memory",
    "PyEval_GetFrame": "frames",
    "PyEval_GetLocals": "frames",
    "PyEval_SetProfile": "frames",
    "PyEval_SetProfileAllThreads": "frames",
    "PyEval_SetTrace": "frames",
    "PyEval_SetTraceAllThreads": "frames",
    "PyFrame_GetBack": "frames",
    "PyFrame_GetLocals": "frames",
    "PyThreadState_GetFrame": "frames",
    "PyUnstable_GC_VisitObjects": "garbage-collector",
    "_exit": "ends-process",
    "_Exit": "ends-process",
    "quick_exit": "ends-process",
    "kill": "ends-process",
    "killpg": "ends-process",
    "setAllowTF32CuBLAS": "precision-switch",
    "setAllowTF32CuDNN": "precision-switch",
    "setFloat32MatmulPrecision": "precision-switch",
}
# Defining one of these puts it before the real one for everything loaded later.
_CLOCKS = frozenset(
    "clock_gettime cudaDeviceSynchronize cudaEventCreate cudaEventElapsedTime cudaEventRecord"
    " cudaEventSynchronize cudaStreamSynchronize cuEventElapsedTime cuEventRecord cuStreamSynchronize"
    " gettimeofday".split()
)
_THREADS = frozenset("async jthread pthread_create thread".split())
_SLEEPS = frozenset("nanosleep sleep sleep_for sleep_until usleep".split())
_ATOMICS = re.compile(
    r"atomic(Add|AddNoRet|Sub|Exch|Max|Min|CAS|Inc|Dec)(_block|_system)?|fetch_add|atomic_ref"
)
_SHORT_TYPES = re.compile(
    r"__half2?|half2?|__nv_bfloat162?|nv_bfloat162?|__nv_fp8\w*|(Half|BFloat16)|kHalf|kBFloat16|half_t|bfloat16_t|tfloat32_t"
)
_SHORT_CASTS = re.compile(r"__float(2|22)(half|bfloat16)2?(_r[nduz])?|__float_to_tf32|__double2half")
_SHORT_ASM = re.compile(
    r"\b(?:wg)?mma[\w.]*\.(?:tf32|f16|bf16|e4m3|e5m2)\b[\w.]*|\bcvt[\w.]*\.(?:tf32|f16|bf16|f16x2|bf16x2)\.f32"
)
_ATOMIC_ASM = re.compile(r"\b(?:red|atom)(?:\.\w+)*\.(?:global|add)[\w.]*")
_LIBRARY = re.compile(
    r"cublas(Lt)?(Sgemm|Hgemm|Gemm|Sgemv|Matmul|GemmEx|SgemmStridedBatched|GemmStridedBatchedEx)\w*"
    r"|cudnn\w*Forward\w*|cudnnBackendExecute"
)
_TORCH_OPS = frozenset(
    "addmm baddbmm bmm conv1d conv2d conv3d einsum layer_norm linear matmul mm scaled_dot_product_attention"
    " softmax log_softmax".split()
)
_LAUNCH_CHECKS = frozenset(
    "AT_CUDA_CHECK C10_CUDA_CHECK C10_CUDA_KERNEL_LAUNCH_CHECK TORCH_CUDA_KERNEL_LAUNCH_CHECK"
    " STD_CUDA_KERNEL_LAUNCH_CHECK cudaGetLastError cudaPeekAtLastError cudaDeviceSynchronize"
    " cudaStreamSynchronize".split()
)
# No parameter list or launch configuration is longer than so many tokens.
_FAR = 500
_DEFAULT_STREAMS = frozenset("0 NULL nullptr cudaStreamDefault cudaStreamLegacy".split())
_MEMORY_FILE = re.compile(r"/proc/(self|thread-self|%\w+|\d+)/(task/[^/]+/)?mem")


def lint_cpp(path: str, text: str) -> list[Finding]:
    """The findings in a C++ or CUDA source."""
    return findings(path, sightings(text))


def sightings(text: str) -> Iterator[Sighting]:
    """What the rules see in a C++ or CUDA text; lines are 1-based within it."""
    stream = [token for token in tokens(text) if token.text != "\n"]
    names = {token.text for token in stream if token.kind == "name"}
    called = {stream[at].text for at in range(len(stream)) if _is_called(stream, at)}
    # A file's own function of a system call's name is not the system's.
    own = {token.text for at, token in enumerate(stream) if token.text in _CALLS and _defines(stream, at)}
    for at, token in enumerate(stream):
        if token.kind == "name":
            yield from _name(stream, at, own)
        elif token.kind == "string":
            yield from _string(stream, at)
        elif token.text == "<<<":
            yield from _launch(stream, at)
    yield from _whole(stream, names, called)


def _text_at(stream: Sequence[Token], at: int) -> str:
    return stream[at].text if 0 <= at < len(stream) and stream[at].kind != "string" else ""


def _is_called(stream: Sequence[Token], at: int) -> bool:
    return stream[at].kind == "name" and _text_at(stream, at + 1) == "("


def _is_plain_call(stream: Sequence[Token], at: int) -> bool:
    """A call of the function of that name itself: no member, no other namespace, no declaration."""
    if not _is_called(stream, at):
        return False
    before = _text_at(stream, at - 1)
    if before in (".", "->"):
        return False
    if before == "::":
        return stream[at - 2].kind != "name" or stream[at - 2].text in ("std", "return")
    # `void kill(` declares or defines; `return kill(` calls.
    return not (at and stream[at - 1].kind == "name" and before not in ("return", "else", "do"))


def _name(stream: Sequence[Token], at: int, own: set[str]) -> Iterator[Sighting]:
    token = stream[at]
    word, line = token.text, token.line
    if word in _CALLS and _is_called(stream, at):
        switch = _CALLS[word] == "precision-switch"
        if switch and _text_at(stream, at + 2) != "false":
            yield Sighting("precision-switch", line, f"calls {word}")
        elif not switch and _is_plain_call(stream, at) and word not in own:
            yield Sighting(_CALLS[word], line, f"calls {word}")
    elif word == "TORCH_LIBRARY_IMPL" and _text_at(stream, at + 2) in TORCH_NAMESPACES:
        yield from _registered(stream, at)
    elif word == "CUBLAS_TF32_TENSOR_OP_MATH":
        yield Sighting("lower-precision", line, "lets cuBLAS use TF32")
    elif word in _CLOCKS and _defines(stream, at):
        yield Sighting("patched-clock", line, f"defines its own {word}")
    elif word in ("exit", "abort", "terminate") and _is_plain_call(stream, at):
        yield Sighting("process-exit", line, f"calls {word}")
    elif word in _THREADS and _text_at(stream, at - 1) == "::" and _text_at(stream, at - 2) == "std":
        yield Sighting("thread", line, f"uses std::{word}")
    elif word in ("pthread_create", "fork") and _is_plain_call(stream, at):
        yield Sighting("thread", line, f"calls {word}")
    elif word in _SLEEPS and _is_called(stream, at):
        plain = _is_plain_call(stream, at) or _text_at(stream, at - 2) == "this_thread"
        if plain:
            yield Sighting("sleep", line, f"calls {word}")
    elif _ATOMICS.fullmatch(word) and _is_called(stream, at):
        yield Sighting("atomics", line, f"uses {word}")
    elif _SHORT_CASTS.fullmatch(word) and _is_called(stream, at):
        yield Sighting("lower-precision", line, f"casts with {word}")
    elif _SHORT_TYPES.fullmatch(word):
        yield Sighting("lower-precision", line, f"uses {word}")
    elif word == "tf32" and _text_at(stream, at - 2) == "precision":
        yield Sighting("lower-precision", line, "uses wmma::precision::tf32")
    elif _LIBRARY.fullmatch(word) and _is_called(stream, at):
        yield Sighting("library-call", line, word)
    elif word in _TORCH_OPS and _is_called(stream, at) and _text_at(stream, at - 2) in ("at", "torch"):
        yield Sighting("library-call", line, f"{_text_at(stream, at - 2)}::{word}")


def _defines(stream: Sequence[Token], at: int) -> bool:
    """``double name(...) {``: a type before, a body behind."""
    if not (
        _is_called(stream, at) and at and (stream[at - 1].kind == "name" or _text_at(stream, at - 1) == "*")
    ):
        return False
    if _text_at(stream, at - 1) in ("return", "else", "do"):
        return False
    depth = 0
    for position in range(at + 1, min(at + _FAR, len(stream))):
        mark = _text_at(stream, position)
        depth += (mark == "(") - (mark == ")")
        if depth == 0:
            rest = [_text_at(stream, position + step) for step in (1, 2)]
            return rest[0] == "{" or (rest[0] == "noexcept" and rest[1] == "{")
    return False


def _string(stream: Sequence[Token], at: int) -> Iterator[Sighting]:
    token = stream[at]
    if _MEMORY_FILE.fullmatch(token.text):
        yield Sighting("process-memory", token.line, f"names {token.text}")
    elif token.text.startswith("kernels.evaluate"):
        imports = _text_at(stream, at - 2).startswith(("PyImport_", "import"))
        if imports:
            yield Sighting("judge-modules", token.line, f"reaches for {token.text}")
    if match := _SHORT_ASM.search(token.text):
        yield Sighting("lower-precision", token.line, f"uses the instruction {match.group()}")
    if match := _ATOMIC_ASM.search(token.text):
        yield Sighting("atomics", token.line, f"uses the instruction {match.group()}")


def _registered(stream: Sequence[Token], at: int) -> Iterator[Sighting]:
    """``TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("clone", f); }``, up to the end of its block."""
    space, depth = _text_at(stream, at + 2), 0
    yield Sighting("patched-library", stream[at].line, f"registers in torch's own namespace {space}")
    for position in range(at + 1, len(stream)):
        mark, token = _text_at(stream, position), stream[position]
        depth += (mark == "{") - (mark == "}")
        if mark == "}" and depth == 0:
            return
        named = token.kind == "string" and _text_at(stream, position - 2) == "impl"
        operator = token.text.removeprefix(f"{space}::").partition(".")[0] if named else ""
        if operator in COPYING:
            yield Sighting("patched-check", token.line, f"registers a kernel for {space}::{operator}")


def _launch(stream: Sequence[Token], at: int) -> Iterator[Sighting]:
    """``kernel<<<grid, block, shared, stream>>>``: without the fourth the stream is the default one."""
    depth = 0
    arguments: list[list[str]] = []
    current: list[str] = []
    for position in range(at + 1, min(at + _FAR, len(stream))):
        token = stream[position]
        if token.kind == "mark":
            depth += (token.text in "([{") - (token.text in ")]}")
            closing = [_text_at(stream, position + step) for step in range(3)] == [">"] * 3
            if depth == 0 and closing and stream[position + 2].at - token.at == 2:
                arguments.append(current)
                break
            if depth == 0 and token.text == ",":
                arguments.append(current)
                current = []
                continue
        current.append(token.text)
    else:
        return
    stream_given = arguments[3] if len(arguments) > 3 else []
    if len(arguments) < 4 or (len(stream_given) == 1 and stream_given[0] in _DEFAULT_STREAMS):
        yield Sighting("default-stream", stream[at].line, "launches a kernel without the current stream")


def _whole(stream: Sequence[Token], names: set[str], called: set[str]) -> Iterator[Sighting]:
    """What only the whole file shows: something is opened and never closed."""

    def first(*words: str) -> int:
        return next(token.line for token in stream if token.text in words)

    allocates = called & {"cudaMalloc", "cudaMallocAsync", "cudaMallocManaged"}
    if allocates and not called & {"cudaFree", "cudaFreeAsync"}:
        yield Sighting("device-memory", first(*allocates), f"calls {min(allocates)} and never cudaFree")
    creates = called & {"cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority"}
    waits = {"cudaStreamWaitEvent", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"}
    if creates:
        waited = "" if names & waits else " and never waits for it"
        yield Sighting("side-stream", first(*creates), f"calls {min(creates)}{waited}")
    pooled = called & {"getStreamFromPool"}
    if pooled:
        yield Sighting("side-stream", first(*pooled), "takes a stream from torch's pool")
    if any(token.text == "<<<" for token in stream) and not names & _LAUNCH_CHECKS:
        yield Sighting("launch-check", first("<<<"), "launches kernels and never asks whether it worked")
