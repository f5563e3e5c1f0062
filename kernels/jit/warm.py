"""The short way to a library built before, and what this process has loaded.

Naming a library's full key takes reading its sources, finding the compilers and
importing the problem's package: some fifty milliseconds. A warm start has five. So
each library that was loaded leaves a note in the cache directory: the question it
answered, the size and time of every file that decided the answer, and the library's
digest. A problem's early build leaves one more note, on all that its first call will
ask. While all of them still stand, the note answers the question; when one does
not, the long way (:mod:`kernels.jit.load`) decides and writes the note anew. The
library itself is checked by content either way.

This module imports nothing that torch has not imported already.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kernels.paths import ROOT, cache_directory, replace_file

__all__ = [
    "Answer",
    "Note",
    "Question",
    "answer_in",
    "binding_is_loaded",
    "compiler_files",
    "count",
    "counts",
    "find",
    "import_guard",
    "noted",
    "open_library",
    "opened",
    "write",
]

# ("gqa_attn", "binding") or ("gqa_attn", "cuda", "9.0", "float32", "32", "4")
Question = tuple[str, ...]
# {"digest": ..., "library": path, "bytes": size of the library, "sha256": of the library}
Answer = dict[str, Any]
# {"asked": ..., "sources": stamps, "others": stamps, "answers": [[question, answer], ...]}
Note = dict[str, Any]

_IMPORTED_NS = time.time_ns()
_CLOCK_NS = 20_000_000  # a file's time is that of the last clock tick

# Held by a background thread while it imports. A child forked meanwhile would find a
# half-made module whose import lock nobody is left to release.
import_guard = threading.RLock()
_guard = threading.Lock()
_opened: dict[str, ctypes.CDLL] = {}
_bindings: dict[str, str] = {}
_counts = {"builds": 0, "hits": 0}


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _counts.update(builds=0, hits=0)
    import_guard.release()


os.register_at_fork(
    before=import_guard.acquire, after_in_parent=import_guard.release, after_in_child=_after_fork_in_child
)


def count(what: str) -> None:
    """Count one more of ``"builds"`` or ``"hits"`` in this process."""
    with _guard:
        _counts[what] += 1


def counts() -> dict[str, int]:
    """How many libraries this process has built, and how many it has found in the cache."""
    with _guard:
        return dict(_counts)


def open_library(digest: str, path: str, binding: str = "") -> ctypes.CDLL:
    """Load the library at ``path``, once per process and digest.

    ``binding`` names the problem whose operators the library registers as it is
    loaded. By digest and not by path: a build loads its library before it is copied
    to the cache, and operators registered twice end the process.

    Raises ``OSError`` when the library cannot be loaded, and :class:`LaunchError` for
    a second, different binding of one problem.
    """
    with _guard:
        library = _opened.get(digest)
        if library is not None:
            return library
        if binding and binding in _bindings:
            from kernels.errors import LaunchError

            raise LaunchError(
                f"the operators of {binding} are loaded already, and their source, torch or the compiler has "
                "changed since; start Python anew to use the new ones"
            )
        library = _opened[digest] = ctypes.CDLL(path)
        if binding:
            _bindings[binding] = digest
        return library


def opened(digest: str) -> ctypes.CDLL | None:
    """The library of ``digest`` if this process has loaded it."""
    return _opened.get(digest)


def binding_is_loaded(problem: str) -> bool:
    """Whether this process has loaded a library that registers the operators of ``problem``."""
    return problem in _bindings


# -- notes -----------------------------------------------------------------------------------

# What decides which compiler is found, and what it makes of its command.
_VARIABLES = (
    "CC",
    "CONDA_PREFIX",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CXX",
    "LIBRARY_PATH",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "PATH",
    "PYTORCH_NVCC",
)


@functools.lru_cache(maxsize=8)
def _process() -> list[Any]:
    """What decides every answer and stays as it is while this process lives."""
    import torch

    build = [torch.__version__, torch.version.cuda, torch.__file__]
    return [*build, sys.platform, os.uname().machine, sys.prefix, ROOT]


def _note(question: Question) -> tuple[str, str]:
    """The path of a question's note, and what the note must say to be its answer."""
    asked = json.dumps([question, [os.environ.get(name) for name in _VARIABLES], _process()])
    name = hashlib.sha256(asked.encode()).hexdigest()[:32]
    return f"{cache_directory()}/notes/{name}.json", asked


def _stamp(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


# Modules are read once, and a compiler that appears later is for the next process.
_settled = functools.lru_cache(maxsize=1024)(_stamp)


def noted(question: Question) -> Note | None:
    """The note on ``question``, if all it depends on still stands; its libraries are not looked at."""
    path, asked = _note(question)
    try:
        with open(path, "rb") as file:
            note = json.loads(file.read())
        stands = note["asked"] == asked and _unchanged(note, "sources", _stamp)
        return note if stands and _unchanged(note, "others", _settled) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # absent or damaged: the long way decides


def _unchanged(note: Note, kind: str, stamp_of: Callable[[str], list[int] | None]) -> bool:
    return all(stamp_of(file) == stamp for file, stamp in note[kind].items())


def find(question: Question) -> tuple[str, str] | None:
    """The answer to ``question`` as (digest, path) of a library that is whole, or None."""
    return answer_in(noted(question), question)


def answer_in(note: Note | None, question: Question) -> tuple[str, str] | None:
    """(digest, path) that ``note`` has for ``question``, if its sources still stand and the file is whole."""
    try:
        if note is None or not _unchanged(note, "sources", _stamp):
            return None
        answer = next(found for asked, found in note["answers"] if tuple(asked) == question)
        with open(answer["library"], "rb") as file:
            content = file.read()
        if len(content) != answer["bytes"] or hashlib.sha256(content).hexdigest() != answer["sha256"]:
            return None
        return answer["digest"], answer["library"]
    except (OSError, StopIteration, ValueError, KeyError, TypeError, AttributeError):
        return None  # not in it, gone or damaged: the long way builds it again


def write(
    question: Question,
    answers: Mapping[Question, Answer],
    sources: Iterable[str],
    since_ns: int,
    others: Iterable[str],
) -> None:
    """Note under ``question`` that ``answers`` hold while all of ``sources`` and ``others`` stay as they are.

    ``sources`` were read after ``since_ns`` (of ``time.time_ns``); ``others`` are the
    Python modules that decided, as this process imported them, and the compilers.
    Nothing is noted when one of them has changed since, nor when the cache directory
    cannot be written.
    """
    stamps = {"sources": {path: _stamp(path) for path in sources}, "others": {p: _stamp(p) for p in others}}
    for kind, read_ns in (("sources", since_ns), ("others", _IMPORTED_NS)):
        if any(stamp is not None and stamp[0] > read_ns - _CLOCK_NS for stamp in stamps[kind].values()):
            return
    path, asked = _note(question)
    replace_file(path, json.dumps({"asked": asked, **stamps, "answers": list(answers.items())}))


def compiler_files(tools: Sequence[str]) -> list[str]:
    """The files of ``tools``, and the folders where another compiler could appear before them."""
    return [
        *(os.path.realpath(tool) for tool in tools),
        *os.environ.get("PATH", os.defpath).split(os.pathsep),
    ]
