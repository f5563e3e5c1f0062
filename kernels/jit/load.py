"""Hands out built libraries: from the cache, or from a build that all who ask share.

Every build runs on a thread of its own, so that a caller who waits can show progress
and be interrupted, and so that several specialisations build side by side, bounded by
cores and memory. In one process a library is built once however many threads ask; in
several, the cache's lock sees to the same.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait

from kernels import paths
from kernels.errors import LaunchError
from kernels.jit import build as builder
from kernels.jit import cache, progress, warm
from kernels.jit.build import Built, Key
from kernels.jit.spec import KernelSpec
from kernels.jit.warm import Question

__all__ = ["answer", "load", "note", "obtain", "obtain_all", "parallel_builds", "stats", "submit"]

_BYTES_PER_BUILD = 1 << 30  # nvcc's largest phase on a large kernel, with room
_EXIT_WAIT_S = 120.0


class _State:
    """What this process has under way; a forked child starts anew."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.running: dict[str, Future[Built]] = {}
        self.slots: threading.BoundedSemaphore | None = None
        self.ending = False


_state = _State()


def _after_fork_in_child() -> None:
    global _state
    _state = _State()
    progress.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def stats() -> dict[str, int]:
    """``{"builds": n, "hits": n}``: libraries this process has built, and found in the cache."""
    return warm.counts()


def obtain(spec: KernelSpec) -> Built:
    """The library of ``spec``: found in the cache, or built, with progress shown meanwhile.

    Raises :class:`CompileError`, :class:`ToolchainError` or :class:`CacheError`.
    """
    return obtain_all([spec])[0]


def obtain_all(specs: Iterable[KernelSpec]) -> list[Built]:
    """The libraries of ``specs`` in their order, built side by side where not in the cache.

    Raises what the first failure raised, when every build has ended.
    """
    keys = [builder.key(spec) for spec in specs]
    return _obtain(keys)


def _obtain(keys: list[Key]) -> list[Built]:
    found = {}
    futures = {}
    for wanted in keys:
        hit = _found(wanted)
        if hit is not None:
            found[wanted.digest] = hit
        elif wanted.digest not in futures:
            futures[wanted.digest] = _start(wanted)
    if futures:
        names = {wanted.spec.name: futures[wanted.digest] for wanted in keys if wanted.digest in futures}
        progress.wait_for(names)
        wait(futures.values())
    return [found[w.digest] if w.digest in found else futures[w.digest].result() for w in keys]


def submit(spec: KernelSpec) -> Future[Built]:
    """Start building ``spec`` in the background, or join the build that is under way.

    Raises nothing: what goes wrong is in the future.
    """
    try:
        wanted = builder.key(spec)
        hit = _found(wanted)
    except Exception as error:
        failed: Future[Built] = Future()
        failed.set_exception(error)
        return failed
    if hit is not None:
        done: Future[Built] = Future()
        done.set_result(hit)
        return done
    return _start(wanted)


def _found(wanted: Key) -> Built | None:
    hit = builder.find(wanted)
    if hit is not None:
        warm.count("hits")
    return hit


def _start(wanted: Key) -> Future[Built]:
    state = _state
    with state.guard:
        running = state.running.get(wanted.digest)
        if running is not None:
            return running
        future: Future[Built] = Future()
        if state.ending:
            # A thread started now would be cut off in the middle.
            future.set_exception(LaunchError(f"{wanted.spec.name} is asked for while Python is ending"))
            return future
        state.running[wanted.digest] = future
    # A daemon, so that the interpreter's own end does not wait without bound for it;
    # `_wait_at_exit` waits with one.
    thread = threading.Thread(
        target=_run, args=(state, wanted, future), name=f"build {wanted.spec.name}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # no more threads, or the interpreter is ending: build on this one
        _run(state, wanted, future)
    return future


def _run(state: _State, wanted: Key, future: Future[Built]) -> None:
    try:
        with _slots(state):
            built = builder.build(wanted)
    except BaseException as error:
        # Out of the table first: the next caller tries again, with the fix in place.
        with state.guard:
            del state.running[wanted.digest]
        future.set_exception(error)
        return
    with state.guard:
        del state.running[wanted.digest]
    warm.count("hits" if built.cached else "builds")
    future.set_result(built)


def _slots(state: _State) -> threading.BoundedSemaphore:
    with state.guard:
        if state.slots is None:
            state.slots = threading.BoundedSemaphore(parallel_builds())
        return state.slots


def parallel_builds() -> int:
    """How many builds run side by side: by cores, by free memory, and at most ``MAX_JOBS``; at least one."""
    bounds = [_cores(), _available_bytes() // _BYTES_PER_BUILD]
    asked = os.environ.get("MAX_JOBS", "")
    if asked.isdigit():
        bounds.append(int(asked))
    return max(1, min(bounds))


def _cores() -> int:
    """Cores this process may use, within the container's share of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _control_group("cpu.max").split()  # "200000 100000": so many of so many microseconds
    if len(share) == 2 and share[0].isdigit():
        cores = min(cores, math.ceil(int(share[0]) / int(share[1])))
    return cores


def _available_bytes() -> int:
    """Memory a new process can have: what the system has available, within the container's limit."""
    available = 1 << 60  # unknown: the cores bound it
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    most, used = _control_group("memory.max"), _control_group("memory.current")
    if most.isdigit() and used.isdigit():
        available = min(available, int(most) - int(used))
    return max(0, available)


def _control_group(name: str) -> str:
    """What this container's control group says, or nothing."""
    try:
        with open(f"/sys/fs/cgroup/{name}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@atexit.register
def _wait_at_exit() -> None:
    # A build cut off would leave its folder and its compiler's processes behind.
    deadline = time.monotonic() + _EXIT_WAIT_S
    while True:
        with _state.guard:
            _state.ending = True
            running = list(_state.running.values())
        if not running or time.monotonic() >= deadline:
            return
        wait(running, timeout=deadline - time.monotonic())


def load(spec: KernelSpec) -> ctypes.CDLL:
    """The loaded library of ``spec``; one per process and content.

    A library that is whole and yet cannot be loaded, such as one built on another
    machine against a newer C library, is built again once. Raises
    :class:`LaunchError`, and what :func:`obtain` raises.
    """
    return _load(builder.key(spec))[0]


def answer(question: Question, spec: KernelSpec, modules: Iterable[str]) -> ctypes.CDLL:
    """:func:`load`, leaving a note for the next process that asks ``question``.

    ``modules`` are the Python files that chose ``spec``.
    """
    wanted = builder.key(spec)
    library, built = _load(wanted)
    if built is not None:
        note(question, {question: (wanted, built)}, modules)
    return library


def note(question: Question, answers: Mapping[Question, tuple[Key, Built]], modules: Iterable[str]) -> None:
    """Note under ``question`` what answers each of ``answers``; see :mod:`kernels.jit.warm`."""
    keys = [wanted for wanted, _ in answers.values()]
    if any(wanted.cxx is None for wanted in keys):
        return  # a library that fits but for the compiler: the next start may find one
    tools = {wanted.cxx.path for wanted in keys if wanted.cxx is not None}
    tools |= {os.path.join(wanted.cuda.home, "bin", "nvcc") for wanted in keys if wanted.cuda is not None}
    warm.write(
        question,
        {
            asked: {
                "digest": wanted.digest,
                "library": str(built.path),
                "bytes": built.manifest["bytes"],
                "sha256": built.manifest["sha256"],
            }
            for asked, (wanted, built) in answers.items()
        },
        sources={str(file) for wanted in keys for file in wanted.source.names.values()},
        since_ns=min(wanted.since_ns for wanted in keys),
        others=[*_DECIDING, *modules, *warm.compiler_files(sorted(tools))],
    )


# The toolkit's own modules that decide what a key holds.
_DECIDING = tuple(
    os.path.join(paths.ROOT, *name.split("/"))
    for name in (
        "attention_variants.py",
        "device.py",
        "problem.py",
        "toolchain/asking.py",
        "toolchain/cuda.py",
        "toolchain/cxx.py",
        "jit/build.py",
        "jit/source.py",
        "jit/spec.py",
        "jit/surroundings.py",
    )
)


def _load(wanted: Key) -> tuple[ctypes.CDLL, Built | None]:
    spec = wanted.spec
    library = warm.opened(wanted.digest)
    if library is not None:
        return library, None
    for attempt in ("first", "last"):
        built = _obtain([wanted])[0]
        try:
            return builder.open_library(wanted, built.path), built
        except OSError as error:
            if attempt == "last":
                raise LaunchError(
                    f"{spec.name}: {error}; if {built.path.parent} is on a file system that forbids "
                    "executables, set KERNELS_CACHE_DIR to another folder"
                ) from error
            cache.remove(built.path.parent)
    raise AssertionError("unreachable")
