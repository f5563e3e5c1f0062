"""The cache directory: what is in it, how an entry gets in, and how it is trusted.

::

    <cache>/entries/<name>-<base>-<compilers>/   one library; published by one rename
        manifest.json                            what it is, and the library's size and sha256
        library.so
    <cache>/work/<random>/                       a build in progress, private to one process
    <cache>/locks/<digest>                       flock; says who builds what; removed after the build
    <cache>/notes/*.json                         which entry answered which question (see warm.py)
    <cache>/tools/*.json                         versions of compilers, by the file they are

An entry is used only when its manifest and its library are whole; anything else is a
miss and is replaced. Locks are advisory and die with their holder, so a killed build
leaves nothing that blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import paths
from kernels.errors import CacheError

__all__ = [
    "Entry",
    "Pruned",
    "cache_directory",
    "clear",
    "entries",
    "find",
    "lock",
    "prune",
    "publish",
    "remove",
    "scratch",
    "seal",
    "tell",
    "verify",
    "writable_directory",
]

FORMAT = 1
LIBRARY = "library.so"
MANIFEST = "manifest.json"

# What a directory that cannot be written says; any other error is a fault to report.
_UNWRITABLE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.ENOENT,
    }
)


@dataclass(frozen=True)
class Entry:
    """One entry: its specialisation's ``name``, the size of its files, its age, and whether it is whole.

    ``problem`` says what is wrong with it and is empty when ``ok``.
    """

    name: str
    path: Path
    bytes: int
    age_s: float
    ok: bool
    problem: str


@dataclass(frozen=True)
class Pruned:
    """What a prune or a clear removed."""

    entries: int
    bytes: int
    stale_builds: int


def cache_directory() -> Path:
    """The cache directory: ``KERNELS_CACHE_DIR``, else ``kernelwright`` in the user's cache directory."""
    return Path(paths.cache_directory())


# -- descriptors that a forked child must not keep -----------------------------------------

# A flock belongs to the open file, which a forked child shares: were the child to keep
# it open, the lock would outlive a killed parent.
_open_locks: set[int] = set()
_open_locks_guard = threading.Lock()


def _after_fork_in_child() -> None:
    global _open_locks_guard, _temporary_guard, _temporary
    _open_locks_guard = threading.Lock()
    _temporary_guard = threading.Lock()
    for descriptor in _open_locks:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open_locks.clear()
    _temporary = None  # the parent removes it when it ends


os.register_at_fork(after_in_child=_after_fork_in_child)


def _open_locked(path: Path, *, wait: bool) -> int | None:
    """A descriptor holding the exclusive lock on ``path``; None when it is taken and ``wait`` is false."""
    waiting: _Waiting | None = None
    while True:
        with _open_locks_guard:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _open_locks.add(descriptor)
        try:
            while not _locked(descriptor):
                if not wait:
                    _close(descriptor)
                    return None
                waiting = waiting or _Waiting(path)
                waiting.pause(descriptor)
            # The last holder may have removed the file between our open and our lock.
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                return descriptor  # no locks here: two builds at once still publish one whole entry
            _close(descriptor)
            raise
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close(descriptor: int) -> None:
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


@contextlib.contextmanager
def lock(directory: Path, digest: str, what: str = "") -> Iterator[None]:
    """Hold the build lock of ``digest`` in the cache ``directory``; waits for another process's build.

    A long wait warns once and names the process it waits for, and ``what`` that builds.
    """
    path = directory / "locks" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_locked(path, wait=True)
    assert descriptor is not None  # wait=True
    try:
        _sign(descriptor, what)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # while held: a waiter sees the file gone and opens it anew
        _close(descriptor)


# -- where to write -------------------------------------------------------------------------

_temporary: Path | None = None
_temporary_guard = threading.Lock()


def writable_directory() -> Path:
    """The cache directory if it can be written, else this process's temporary folder, with one warning."""
    directory = cache_directory()
    try:
        probe = tempfile.mkdtemp(dir=_made(directory / "work"), prefix="probe-")
        os.rmdir(probe)
        return directory
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise CacheError(f"the cache directory {directory} cannot be used: {error}") from error
        return _temporary_directory(directory, error)


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _temporary_directory(directory: Path, why: OSError) -> Path:
    global _temporary
    with _temporary_guard:
        if _temporary is not None and _temporary.is_dir():
            return _temporary
        try:
            _temporary = Path(tempfile.mkdtemp(prefix="kernelwright-"))
        except OSError as error:
            raise CacheError(
                f"neither the cache directory {directory} ({why.strerror}) nor a temporary folder "
                f"({error}) can be written; set KERNELS_CACHE_DIR to a writable folder"
            ) from error
        import atexit

        atexit.register(_remove_temporary, _temporary, os.getpid())
    warnings.warn(
        f"the cache directory {directory} cannot be written ({why.strerror}); building into {_temporary} for "
        "this process only. Set KERNELS_CACHE_DIR to a writable folder to keep what is built.",
        RuntimeWarning,
        stacklevel=2,
    )
    return _temporary


def _remove_temporary(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _search_path() -> list[Path]:
    return [cache_directory(), *([_temporary] if _temporary is not None else [])]


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A private folder below ``directory``, on the file system entries are renamed within.

    It is locked while in use: an unlocked one was left by a killed build.
    """
    path = Path(tempfile.mkdtemp(dir=_made(directory / "work"), prefix="build-"))
    descriptor = _open_locked(path / "alive", wait=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if descriptor is not None:
            _close(descriptor)


# -- entries ----------------------------------------------------------------------------------


def seal(manifest: dict[str, Any]) -> bytes:
    """The bytes of a manifest file: the manifest with a checksum of itself."""
    body = json.dumps(manifest, sort_keys=True)
    return json.dumps(
        {"manifest": manifest, "sha256": hashlib.sha256(body.encode()).hexdigest()}, indent=1
    ).encode()


def _read(path: Path) -> dict[str, Any]:
    """The manifest of the entry at ``path``; raises ``ValueError`` saying what is wrong with the entry."""
    try:
        stored = json.loads((path / MANIFEST).read_bytes())
        manifest = stored["manifest"]
        if hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() != stored["sha256"]:
            raise ValueError("its manifest is damaged")
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']}, not {FORMAT}")
        library = (path / LIBRARY).read_bytes()
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("its manifest is damaged") from None
    except OSError as error:
        raise ValueError(f"{os.path.basename(error.filename or '')}: {error.strerror}") from None
    if len(library) != manifest["bytes"]:
        raise ValueError(f"its library has {len(library)} bytes, not {manifest['bytes']}")
    if hashlib.sha256(library).hexdigest() != manifest["sha256"]:
        raise ValueError("its library is damaged")
    return manifest


def _folder(name: str, base: str, compilers: str) -> str:
    return f"{name}-{base}-{compilers}"


def find(name: str, base: str, compilers: str | None) -> tuple[Path, dict[str, Any]] | None:
    """The whole entry for these digests as (library, manifest), or None.

    ``compilers`` is None where no compiler can be had: then the newest entry that
    matches in everything else serves.
    """
    for directory in _search_path():
        folder = directory / "entries"
        if compilers is not None:
            candidates = [folder / _folder(name, base, compilers)]
        else:
            candidates = sorted(folder.glob(_folder(_literal(name), base, "*")), key=_modified, reverse=True)
        for path in candidates:
            try:
                return path / LIBRARY, _read(path)
            except ValueError:
                continue  # damaged or absent: a miss
    return None


def _literal(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def publish(directory: Path, name: str, base: str, compilers: str, staged: Path) -> Path:
    """Move the complete folder ``staged`` into place and return its library's path.

    Whatever stood there is replaced. Call with the lock of the entry held.
    """
    target = _made(directory / "entries") / _folder(name, base, compilers)
    for _ in range(3):
        try:
            os.rename(staged, target)
            return target / LIBRARY
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            remove(target)
    raise CacheError(f"cannot replace the cache entry {target}; remove it, or set KERNELS_CACHE_DIR")


def remove(path: Path) -> None:
    """Remove the entry at ``path``: first out of sight in one step, then for good."""
    work = _made(path.parent.parent / "work")
    aside = tempfile.mkdtemp(dir=work, prefix="removed-")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, os.path.join(aside, "entry"))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def entries() -> list[Entry]:
    """Every entry of the cache directory, oldest first. Reads and checks each one."""
    found = []
    folder = cache_directory() / "entries"
    if folder.is_dir():
        found = [_inspect(path) for path in folder.iterdir()]
    return sorted(found, key=lambda entry: (-entry.age_s, entry.name))


def _inspect(path: Path) -> Entry:
    size = sum(file.lstat().st_size for file in _files(path))
    age_s = max(0.0, time.time() - _modified(path))
    try:
        return Entry(_read(path)["name"], path, size, age_s, True, "")
    except ValueError as error:
        return Entry(path.name, path, size, age_s, False, str(error))


def _files(path: Path) -> list[Path]:
    return [path] if not path.is_dir() else [file for file in path.rglob("*") if not file.is_dir()]


def verify() -> list[Entry]:
    """The entries that are not whole."""
    return [entry for entry in entries() if not entry.ok]


def prune(older_than_s: float | None = None, over_bytes: int | None = None) -> Pruned:
    """Remove damaged entries, entries older than ``older_than_s`` seconds, the oldest
    while all together exceed ``over_bytes``, and what killed builds left behind.

    Raises :class:`CacheError` when the cache directory cannot be written.
    """
    kept: list[Entry] = []
    removed: list[Entry] = []
    for entry in entries():
        too_old = older_than_s is not None and entry.age_s > older_than_s
        (removed if too_old or not entry.ok else kept).append(entry)
    if over_bytes is not None:
        total = sum(entry.bytes for entry in kept)
        for entry in kept:  # oldest first
            if total <= over_bytes:
                break
            removed.append(entry)
            total -= entry.bytes
    return _remove_all(removed)


def clear() -> Pruned:
    """Remove every entry, what killed builds left behind, and what is noted of compilers and questions.

    A build in progress is left alone. Raises :class:`CacheError`.
    """
    pruned = _remove_all(entries())
    for name in ("notes", "tools"):
        shutil.rmtree(cache_directory() / name, ignore_errors=True)
    return pruned


def _remove_all(removed: list[Entry]) -> Pruned:
    try:
        for entry in removed:
            remove(entry.path)
        _remove_orphaned_notes()
        return Pruned(len(removed), sum(entry.bytes for entry in removed), _remove_stale_builds())
    except OSError as error:
        raise CacheError(f"the cache directory {cache_directory()} cannot be written: {error}") from error


def _remove_orphaned_notes() -> None:
    """Remove the notes on a library that is gone, and those that cannot be read."""
    notes = cache_directory() / "notes"
    for path in notes.iterdir() if notes.is_dir() else ():
        try:
            answers = json.loads(path.read_bytes())["answers"]
            if all(os.path.exists(answer["library"]) for _, answer in answers):
                continue
        except (ValueError, KeyError, TypeError):
            pass  # damaged: it answers nothing
        path.unlink(missing_ok=True)


def _remove_stale_builds() -> int:
    """Remove the folders of builds whose process is gone; returns how many."""
    count = 0
    work = cache_directory() / "work"
    for path in work.iterdir() if work.is_dir() else ():
        # A folder without its lock file is about to get it, or about to be removed.
        if not (path / "alive").exists() and time.time() - _modified(path) < 60:
            continue
        try:
            descriptor = _open_locked(path / "alive", wait=False)
        except FileNotFoundError:
            continue  # gone by itself
        if descriptor is None:
            continue  # its build is running
        try:
            shutil.rmtree(path, ignore_errors=True)
            count += 1
        finally:
            _close(descriptor)
    return count
