"""From what ended a worker to a status: the one table of who is to blame for what."""

from __future__ import annotations

import re
from typing import Any

from kernels.evaluate.evaluation import Finding
from kernels.evaluate.status import Status
from kernels.evaluate.verdict import FAILURE
from kernels.evaluate.workers.isolation import WorkerFailed

__all__ = ["failure_finding", "reference_finding", "status_of"]

_OF_KIND = {
    "timeout": Status.TIMEOUT,
    "memory": Status.OUT_OF_MEMORY,
    "died": Status.RUNTIME_ERROR,
    "protocol": Status.RUNTIME_ERROR,
}
_MEMORY_TYPES = {"OutOfMemoryError", "MemoryError"}
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")
_COMPILE_TYPES = {"CompileError", "CompilationError", "NVRTCError", "CppCompileError", "BuildError"}
_COMPILE_WORDS = (
    "error building extension",
    "error compiling objects",
    "ninja: build stopped",
    "nvrtc: error",
)
_COMPILER_ERROR = re.compile(r"\berror( \w+)?: ")
_TOOL_TYPES = {"ToolchainError"}
# What a worker's own code may say of a candidate; an exception of the candidate could claim anything.
_CLAIMS = (Status.INVALID_CANDIDATE, Status.WRONG_OUTPUT)


def status_of(failure: WorkerFailed) -> Status:
    """The status that a candidate's failure comes to."""
    if failure.kind != "error":
        return _OF_KIND[failure.kind]
    reply = failure.reply
    bases = reply.get("bases")
    bases = {str(base) for base in bases} if isinstance(bases, list) else set()
    bases.add(str(reply.get("type")))
    text = str(reply.get("text", "")).lower()
    for claim in _CLAIMS:
        if reply.get("status") == claim.value:
            return claim
    if bases & _MEMORY_TYPES or any(words in text for words in _MEMORY_WORDS):
        return Status.OUT_OF_MEMORY
    if bases & _TOOL_TYPES:
        return Status.TOOL_ERROR
    if bases & _COMPILE_TYPES or any(words in text for words in _COMPILE_WORDS):
        return Status.COMPILE_ERROR
    return Status.RUNTIME_ERROR


def failure_finding(stage: str, failure: WorkerFailed) -> Finding:
    """The finding that a candidate ended its own evaluation during ``stage``."""
    status = status_of(failure)
    error = _compiler_error(failure) if status is Status.COMPILE_ERROR else ""
    said = f"a compiler refused its source: {error}" if error else f"the candidate {_words(failure)}"
    return Finding(
        FAILURE,
        "violation",
        stage,
        f"during {stage} {said}",
        evidence={"status": status.value, "kind": failure.kind, **_trace(failure)},
    )


def reference_finding(failure: WorkerFailed, device: str) -> Finding:
    """The finding that the reference does not work here."""
    message = f"the reference {_words(failure)}"
    if device == "cpu" and _wants_a_gpu(failure):
        message = f"the reference needs a GPU, and this evaluation is on the CPU: {failure.detail}"
    return Finding(
        FAILURE,
        "violation",
        "reference",
        message,
        evidence={"status": Status.INVALID_REFERENCE.value, "kind": failure.kind, **_trace(failure)},
    )


def _words(failure: WorkerFailed) -> str:
    return f"raised {failure.detail}" if failure.kind == "error" else failure.detail


def _compiler_error(failure: WorkerFailed) -> str:
    """The compiler's first error, which comes after its whole command line; empty where none is found."""
    lines = str(failure.reply.get("text", "")).splitlines()
    return next((line.strip()[:500] for line in lines if _COMPILER_ERROR.search(line)), "")


def _trace(failure: WorkerFailed) -> dict[str, Any]:
    trace = str(failure.reply.get("traceback", ""))
    return {"traceback": trace} if trace else {}


def _wants_a_gpu(failure: WorkerFailed) -> bool:
    words = ("not compiled with cuda", "no nvidia driver", "no cuda gpus", "no cuda-capable")
    return any(word in failure.detail.lower() for word in words)
