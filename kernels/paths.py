"""Where the toolkit keeps what it builds. Imports little: every warm start needs it."""

from __future__ import annotations

import contextlib
import os
import threading

__all__ = ["ROOT", "cache_directory", "replace_file", "write_file"]

ROOT = os.path.dirname(os.path.abspath(__file__))  # kernels/


def cache_directory() -> str:
    """The cache directory: ``KERNELS_CACHE_DIR``, else ``kernelwright`` in the user's cache directory."""
    chosen = os.environ.get("KERNELS_CACHE_DIR")
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rule: a relative value is ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "kernelwright")


def replace_file(path: str, text: str) -> bool:
    """Write ``text`` to ``path`` in one step; False when it cannot be written."""
    try:
        write_file(path, text)
    except OSError:
        return False
    return True


def write_file(path: str, text: str) -> None:
    """Write ``text`` to ``path`` in one step: whole, or what was there stays. Raises ``OSError``."""
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
