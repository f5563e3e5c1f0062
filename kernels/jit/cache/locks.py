"""Locks between processes, and a wait that says whom it waits for.

Locks are advisory and die with their holder, so a killed build leaves nothing that blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

__all__ = ["acquire", "lock", "release", "tell"]


@contextlib.contextmanager
def lock(directory: Path, digest: str, what: str = "") -> Iterator[None]:
    """Hold the build lock of ``digest`` in the cache ``directory``; waits for another process's build.

    A long wait warns once and names the process it waits for, and ``what`` that builds.
    """
    path = directory / "locks" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = acquire(path, wait=True)
    assert descriptor is not None  # wait=True
    try:
        _sign(descriptor, what)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # while held: a waiter sees the file gone and opens it anew
        release(descriptor)


# -- descriptors that a forked child must not keep -----------------------------------------

# A flock belongs to the open file, which a forked child shares: were the child to keep
# it open, the lock would outlive a killed parent.
_open_locks: set[int] = set()
_open_locks_guard = threading.Lock()


def _after_fork_in_child() -> None:
    global _open_locks_guard
    _open_locks_guard = threading.Lock()
    for descriptor in _open_locks:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open_locks.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def acquire(path: Path, *, wait: bool) -> int | None:
    """A descriptor holding the exclusive lock on ``path``; None when it is taken and ``wait`` is false."""
    waiting: _Waiting | None = None
    while True:
        with _open_locks_guard:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _open_locks.add(descriptor)
        try:
            while not _locked(descriptor):
                if not wait:
                    release(descriptor)
                    return None
                waiting = waiting or _Waiting(path)
                waiting.pause(descriptor)
            # The last holder may have removed the file between our open and our lock.
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                return descriptor  # no locks here: two builds at once still publish one whole entry
            release(descriptor)
            raise
        except BaseException:
            release(descriptor)
            raise
        release(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(descriptor: int) -> None:
    """Give the lock of ``descriptor`` back and close it."""
    with _open_locks_guard:
        if descriptor not in _open_locks:
            return  # a forked child: closed already
        _open_locks.discard(descriptor)
        with contextlib.suppress(OSError):
            # Explicit, because a copy in a child forked by other code would keep it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


# -- a wait that says whom it waits for -----------------------------------------------------

_WARN_AFTER_S = 20.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.2


class _Waiting:
    """One wait for a lock: pauses that grow, and one warning when it gets long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._warned = False

    def pause(self, descriptor: int) -> None:
        waited_s = time.monotonic() - self._since
        if not self._warned and waited_s >= _WARN_AFTER_S:
            self._warned = True
            tell(
                f"waited {waited_s:.0f} s for the build lock {self._path}, held by {_holder(descriptor)}. "
                "The wait goes on until the build is done or its process ends."
            )
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def tell(message: str) -> None:
    """Warn of a long wait. Where warnings are errors it is printed: the wait itself is right."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                print(message, file=sys.stderr, flush=True)


def _sign(descriptor: int, what: str) -> None:
    """Write who holds the lock, and for what, into its file.

    One line and nothing cut off: a longer one, left by a killed holder, ends after it.
    """
    line = f"{os.getpid()} {os.uname().nodename} {' '.join(what.split())}\n"
    with contextlib.suppress(OSError):  # a full disk: the lock holds without
        os.pwrite(descriptor, line.encode("utf-8", "replace"), 0)


def _holder(descriptor: int) -> str:
    """Who signed the lock file, in words."""
    try:
        first, end, _ = os.pread(descriptor, 1024, 0).partition(b"\n")
    except OSError:
        first, end = b"", b""
    match = re.fullmatch(rb"([1-9][0-9]{0,9}) (\S+) (.*)", first) if end else None
    if match is None:
        return "a process that has not written its PID there"
    pid, host, what = int(match[1]), _printable(match[2]), _printable(match[3])
    builds = f", which builds {what}" if what else ""
    if host != os.uname().nodename:
        return f"process {pid} on {host}{builds}"
    return f"process {pid} ({_state(pid)}){builds}"


_STATES = {b"T": "stopped", b"t": "stopped by a debugger", b"D": "waiting for a device or a disk"}


def _state(pid: int) -> str:
    """Whether process ``pid`` lives and, where ``/proc`` says so, what it is."""
    if os.path.isdir("/proc/self") and not os.path.isdir(f"/proc/{pid}"):
        return "no such process here; a child of it, or a process in another container, may hold the lock"
    words = []
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        words += [_STATES.get(state, "alive") for state in fields[:1]]
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        words += [text for text in [_printable(command)] if text]
    return ": ".join(words) or "alive"


def _printable(text: bytes) -> str:
    """``text`` on one line and not too long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text.decode("utf-8", "replace")).split())
    return line if len(line) <= 200 else line[:200] + "..."
