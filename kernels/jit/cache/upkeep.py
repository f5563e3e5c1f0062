"""``python -m kernels cache``: what the cache holds, and what is thrown away."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from kernels.errors import CacheError
from kernels.jit.cache.folders import cache_directory, modified
from kernels.jit.cache.locks import acquire, release
from kernels.jit.cache.store import read, remove

__all__ = ["Entry", "Pruned", "clear", "entries", "prune", "verify"]


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


def entries() -> list[Entry]:
    """Every entry of the cache directory, oldest first. Reads and checks each one.

    Raises :class:`CacheError` when the cache directory is a file.
    """
    found = []
    directory = cache_directory()
    if directory.exists() and not directory.is_dir():
        raise CacheError(f"the cache directory {directory} is no folder; set KERNELS_CACHE_DIR to one")
    folder = directory / "entries"
    if folder.is_dir():
        found = [_inspect(path) for path in folder.iterdir()]
    return sorted(found, key=lambda entry: (-entry.age_s, entry.name))


def _inspect(path: Path) -> Entry:
    size = sum(file.lstat().st_size for file in _files(path))
    age_s = max(0.0, time.time() - modified(path))
    try:
        return Entry(read(path)["name"], path, size, age_s, True, "")
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
        if not (path / "alive").exists() and time.time() - modified(path) < 60:
            continue
        try:
            descriptor = acquire(path / "alive", wait=False)
        except FileNotFoundError:
            continue  # gone by itself
        if descriptor is None:
            continue  # its build is running
        try:
            shutil.rmtree(path, ignore_errors=True)
            count += 1
        finally:
            release(descriptor)
    return count
