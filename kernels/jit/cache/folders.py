"""Where to write: the cache directory or a stand-in, and private folders in it for builds."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from kernels import paths
from kernels.errors import CacheError
from kernels.jit.cache.locks import acquire, release

__all__ = ["cache_directory", "made", "modified", "scratch", "search_path", "writable_directory"]

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


def cache_directory() -> Path:
    """The cache directory: ``KERNELS_CACHE_DIR``, else ``kernelwright`` in the user's cache directory."""
    return Path(paths.cache_directory())


_temporary: Path | None = None
_temporary_guard = threading.Lock()


def _after_fork_in_child() -> None:
    global _temporary_guard, _temporary
    _temporary_guard = threading.Lock()
    _temporary = None  # the parent removes it when it ends


os.register_at_fork(after_in_child=_after_fork_in_child)


def writable_directory() -> Path:
    """The cache directory if it can be written, else this process's temporary folder, with one warning."""
    directory = cache_directory()
    try:
        probe = tempfile.mkdtemp(dir=made(directory / "work"), prefix="probe-")
        os.rmdir(probe)
        return directory
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise CacheError(f"the cache directory {directory} cannot be used: {error}") from error
        return _temporary_directory(directory, error)


def made(path: Path) -> Path:
    """``path``, a folder that is there from now on."""
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


def search_path() -> list[Path]:
    """Where this process may find entries: the cache directory, then its temporary folder."""
    return [cache_directory(), *([_temporary] if _temporary is not None else [])]


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A private folder below ``directory``, on the file system entries are renamed within.

    It is locked while in use: an unlocked one was left by a killed build.
    """
    path = Path(tempfile.mkdtemp(dir=made(directory / "work"), prefix="build-"))
    descriptor = acquire(path / "alive", wait=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if descriptor is not None:
            release(descriptor)


def modified(path: Path) -> float:
    """When ``path`` was last changed; 0.0 where it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
