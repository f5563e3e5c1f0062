"""Python text to a syntax tree."""

from __future__ import annotations

import ast
import threading

__all__ = ["parse"]

_one_at_a_time = threading.Lock()
_ATTEMPTS = 3


def parse(text: str, path: str = "<unknown>") -> ast.Module:
    """``ast.parse``, also while other threads parse.

    CPython counts the depth of a tree in one place for all threads (its issue 106905, seen with
    3.11): now and then two at once end as SystemError, "AST constructor recursion depth mismatch".
    Callers of this function take turns; for those of ``ast.parse`` elsewhere there is another attempt.
    """
    with _one_at_a_time:
        for _ in range(_ATTEMPTS - 1):
            try:
                return ast.parse(text, filename=path)
            except SystemError:
                continue
        return ast.parse(text, filename=path)
