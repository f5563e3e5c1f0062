"""Files that a command line names to be written: looked at before the work, and written whole."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from kernels.cli.usage import UsageError
from kernels.paths import write_file

__all__ = ["check_writable", "write", "write_json"]


def check_writable(*paths: str | None) -> None:
    """Raise :class:`UsageError` unless each of ``paths`` can be written and no two are one file.

    Touches none of them, whether it is there or not. None and ``""`` are no paths.
    """
    real = [os.path.realpath(path) for path in paths if path]
    for path in filter(None, paths):
        try:
            _probe(Path(os.path.realpath(path)))
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
        if real.count(os.path.realpath(path)) > 1:
            raise UsageError(f"{path} is to be written twice; give each its own file")


def _probe(path: Path) -> None:
    """Raises ``OSError`` where a file cannot be put in the place of ``path``."""
    if path.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if _is_stream(path):
        return
    if not path.parent.is_dir():
        raise NotADirectoryError(0, f"there is no folder {path.parent}")
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def write(path: str, text: str) -> None:
    """Write ``text`` to ``path`` in one step. Raises :class:`UsageError` where that fails."""
    real = os.path.realpath(path)
    try:
        if _is_stream(Path(real)):
            Path(real).write_text(text, encoding="utf-8")
        else:
            write_file(real, text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def write_json(path: str, document: Any) -> None:
    """:func:`write` of ``document`` as JSON."""
    write(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _is_stream(path: Path) -> bool:
    """Whether the path is a device or a pipe (``/dev/stdout``): never to be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()
