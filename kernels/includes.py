"""Which files a kernel's source includes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "closure", "included"]

ROOT = Path(__file__).resolve().parent  # kernels/

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def included(path: Path) -> list[Path]:
    """Every file that the source at ``path`` includes by quoted name, itself or by way of another."""
    return [file for _, file, _ in closure(path.read_bytes(), path)]


def closure(body: bytes, path: Path) -> Iterator[tuple[str, Path, bytes]]:
    """Every quoted include, once: path relative to its root, file, content.

    A name that resolves nowhere is left to the compiler: it may stand in a comment,
    or in a branch not taken.
    """
    # Of a source kept elsewhere its own folder is searched first.
    roots = [ROOT] if path.is_relative_to(ROOT) else [ROOT, path.parent]
    waiting = [(path, body)]
    seen = set()
    while waiting:
        includer, content = waiting.pop()
        for match in _INCLUDE.finditer(content):
            name = match.group(1).decode("utf-8", "replace")
            for folder in (includer.parent, *reversed(roots)):
                file = Path(os.path.normpath(folder / name))
                root = next((r for r in roots if file.is_relative_to(r)), None)
                if root is None or not file.is_file():
                    continue
                relative = file.relative_to(root).as_posix()
                if relative not in seen:
                    seen.add(relative)
                    text = file.read_bytes()
                    waiting.append((file, text))
                    yield relative, file, text
                break
