"""Lints one Python file: its own rules on the syntax tree, and the C++ ones on the sources in its strings."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import partial

from kernels.evaluate.evaluation import Finding
from kernels.evaluate.lint.collect import Sighting, findings
from kernels.evaluate.lint.cpp import sightings as cpp_sightings
from kernels.evaluate.lint.embedded import embedded
from kernels.evaluate.lint.entered import entered
from kernels.evaluate.lint.habits import habits
from kernels.evaluate.lint.memo import memos
from kernels.evaluate.lint.patches import patches
from kernels.evaluate.lint.reach import reaches
from kernels.evaluate.lint.walk import walk
from kernels.evaluate.syntax import parse

__all__ = ["lint_python"]

_GUARDED = 'under if __name__ == "__main__", which an import does not run'


def lint_python(path: str, text: str) -> list[Finding]:
    """The findings in a Python source; one that does not parse yields a single note."""
    try:
        return findings(path, _sightings(_parsed(text), text))
    except SyntaxError as error:
        return findings(path, [Sighting("unread", error.lineno or 0, f"is not valid Python: {error.msg}")])
    except (RecursionError, ValueError) as error:  # nested too deeply, or null bytes
        return findings(path, [Sighting("unread", 0, f"cannot be parsed: {error}")])


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():  # an odd escape in a candidate's string is its own affair
        warnings.simplefilter("ignore")
        return parse(text)


def _sightings(tree: ast.Module, text: str, first_line: int = 0) -> Iterator[Sighting]:
    # A file that sets its own __name__ may well run what stands under the guard.
    guard_holds = not re.search(r"\b__name__\s*=[^=]", text)
    kept = partial(memos, reached=entered(tree))
    for node, place in walk(tree):
        doubt = _GUARDED if place.only_main and guard_holds else ""
        for rules in (patches, reaches, kept, habits):
            for seen in rules(node, place):
                yield Sighting(seen.rule, getattr(seen.node, "lineno", 1) + first_line, seen.message, doubt)
        if isinstance(node, ast.Call) and place.scopes.dotted(node.func) in ("compile", "eval", "exec"):
            yield from _inner(node, place.scopes.text(node.args[0]) if node.args else None, first_line)
    for source in embedded(tree, text):
        for sighting in cpp_sightings(source.text):
            line = source.lines[min(sighting.line, len(source.lines)) - 1]
            yield Sighting(sighting.rule, line + first_line, sighting.message)


def _inner(node: ast.Call, code: str | None, first_line: int) -> Iterator[Sighting]:
    """What a constant text given to ``exec`` does, on the line of that call."""
    if code is None:
        return
    try:
        inner = _parsed(code)
    except (SyntaxError, ValueError):
        return  # exec raises when it gets there; there is nothing in it to find
    for sighting in _sightings(inner, code):
        yield Sighting(sighting.rule, node.lineno + first_line, f"in {code[:40]!r}: {sighting.message}")
