"""Reads what a candidate is made of and says what to know before its numbers are believed.

Python is read as a syntax tree, C++ and CUDA as tokens, also where they stand in the
strings of a Python file. Nothing is imported or run. The rules are in
:mod:`kernels.evaluate.lint.rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from kernels.evaluate.evaluation import Finding, Source
from kernels.evaluate.lint.cpp import CPP_SUFFIXES, lint_cpp
from kernels.evaluate.lint.python import lint_python
from kernels.evaluate.lint.rules import RULES, Rule

__all__ = ["RULES", "Rule", "lint_file", "lint_sources"]


def lint_file(path: str, text: str) -> list[Finding]:
    """The findings in one file, by line; a file that is neither Python nor C++ or CUDA has none."""
    suffix = PurePosixPath(path.replace("\\", "/")).suffix.lower()
    if suffix in ("", ".py", ".pyi"):
        return lint_python(path, text)
    return lint_cpp(path, text) if suffix in CPP_SUFFIXES else []


def lint_sources(sources: Sequence[Source]) -> tuple[Finding, ...]:
    """The findings in every file of one side, violations first."""
    found = [finding for source in sources for finding in lint_file(source.path, source.text)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "violation"))
