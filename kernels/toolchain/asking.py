"""Asks a tool what it is, and remembers the answer by the file the tool is."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

from kernels.paths import cache_directory, replace_file

__all__ = ["output_of", "remembered", "version_of"]


def remembered(question: str, tool: str, ask: Callable[[str], Any]) -> Any:
    """``ask(tool)``, or its answer from last time while the file ``tool`` is unchanged.

    Answers live in the cache directory, one small file each, so that no compiler is
    started to learn its version. A file that cannot be read or written only costs that.
    """
    real = os.path.realpath(tool)
    if "cache" in os.path.basename(real):
        return ask(tool)  # ccache and its like: the file says nothing of the compiler behind it
    status = os.stat(real)
    stamp = json.dumps([question, tool, real, status.st_mtime_ns, status.st_size])
    name = hashlib.sha256(stamp.encode()).hexdigest()[:24] + ".json"
    path = os.path.join(cache_directory(), "tools", name)
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        if stored["stamp"] == stamp:
            return stored["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent or damaged: ask again
    answer = ask(tool)
    if answer:  # a tool that failed may work the next time
        replace_file(path, json.dumps({"stamp": stamp, "answer": answer}))
    return answer


def output_of(command: list[str]) -> str:
    """Standard output and error of ``command``; empty when it cannot run or fails."""
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.decode("utf-8", "replace") if result.returncode == 0 else ""


def version_of(tool: str) -> str:
    """What ``tool --version`` says; empty when it says nothing."""
    return output_of([tool, "--version"]).strip()
