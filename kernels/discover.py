"""Which problem packages there are, found by looking rather than by a list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["problem_packages"]

_NAMES_A_PROBLEM = re.compile(r"\bPROBLEM\b")
_USES_THE_TOOLKIT = re.compile(r"^\s*(from|import)\s+kernels\.problem\b", re.MULTILINE)


def problem_packages(folders: Iterable[Path] | None = None) -> tuple[str, ...]:
    """Names of the problem packages beside ``kernels`` and in the current folder, sorted.

    Reads source text and imports nothing: beside an installed ``kernels`` lie all
    other installed packages. A package counts when its ``__init__.py`` names
    ``PROBLEM`` and one of its modules imports ``kernels.problem``.
    """
    if folders is None:
        folders = (Path(__file__).resolve().parent.parent, Path.cwd())
    found = set()
    for folder in folders:
        for init in folder.glob("*/__init__.py"):
            package = init.parent
            if package.name.isidentifier() and package.name != "kernels" and _is_problem(init):
                found.add(package.name)
    return tuple(sorted(found))


def _is_problem(init: Path) -> bool:
    if not _NAMES_A_PROBLEM.search(init.read_text(encoding="utf-8", errors="replace")):
        return False
    modules = init.parent.glob("*.py")
    return any(_USES_THE_TOOLKIT.search(m.read_text(encoding="utf-8", errors="replace")) for m in modules)
