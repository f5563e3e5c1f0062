"""Entries: how one gets in, how it is trusted, and how it goes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kernels.errors import CacheError
from kernels.jit.cache.folders import made, modified, search_path

__all__ = ["FORMAT", "LIBRARY", "MANIFEST", "find", "publish", "read", "remove", "seal"]

FORMAT = 1
LIBRARY = "library.so"
MANIFEST = "manifest.json"


def seal(manifest: dict[str, Any]) -> bytes:
    """The bytes of a manifest file: the manifest with a checksum of itself."""
    return json.dumps({"manifest": manifest, "sha256": _checksum(manifest)}, indent=1).encode()


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """The manifest of the entry at ``path``; raises ``ValueError`` saying what is wrong with the entry."""
    try:
        stored = json.loads((path / MANIFEST).read_bytes())
        manifest = stored["manifest"]
        if _checksum(manifest) != stored["sha256"]:
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
    for directory in search_path():
        folder = directory / "entries"
        if compilers is not None:
            candidates = [folder / _folder(name, base, compilers)]
        else:
            candidates = sorted(folder.glob(_folder(_literal(name), base, "*")), key=modified, reverse=True)
        for path in candidates:
            try:
                return path / LIBRARY, read(path)
            except ValueError:
                continue  # damaged or absent: a miss
    return None


def _literal(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def publish(directory: Path, name: str, base: str, compilers: str, staged: Path) -> Path:
    """Move the complete folder ``staged`` into place and return its library's path.

    Whatever stood there is replaced. Call with the lock of the entry held.
    """
    target = made(directory / "entries") / _folder(name, base, compilers)
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
    work = made(path.parent.parent / "work")
    aside = tempfile.mkdtemp(dir=work, prefix="removed-")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, os.path.join(aside, "entry"))
    finally:
        shutil.rmtree(aside, ignore_errors=True)
