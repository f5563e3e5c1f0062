"""C++ and CUDA that stands in the strings of a Python file, with the line each of its lines has there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Embedded", "embedded"]

# Any of these makes a string source code; a sentence that merely names them has no brace or semicolon.
_LOOKS_LIKE_CODE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"]|\b__global__\b|\b__device__\b|\b(?:torch|at)::Tensor\b"
    r"|\bTORCH_LIBRARY\w*\s*\(|\bPYBIND11_MODULE\s*\(|\bextern\s+\"C\"",
    re.MULTILINE,
)
_PIECE = re.compile(r"([A-Za-z]{0,2})('''|\"\"\"|'|\")")


@dataclass(frozen=True)
class Embedded:
    """A source in a string; ``lines[i]`` is the line of the file on which its line ``i`` (0-based) stands."""

    text: str
    lines: tuple[int, ...]


def embedded(tree: ast.Module, source: str) -> Iterator[Embedded]:
    """Every string of ``tree`` that is C++ or CUDA; docstrings and other bare strings are prose."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    file_lines = source.splitlines(keepends=True)
    inside_f_strings = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if id(node) in prose | inside_f_strings:
            continue
        text = _text(node)
        if text and re.search(r"[;{(]", text) and _LOOKS_LIKE_CODE.search(text):
            yield Embedded(text, _lines(node, text, file_lines))


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        # What is filled in is some name, number or type; a name stands for all of them.
        return "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "filled_in"
            for part in node.values
        )
    return None


def _lines(node: ast.AST, text: str, file_lines: list[str]) -> tuple[int, ...]:
    first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    segment = list(file_lines[first - 1 : last])
    # Columns are in UTF-8 bytes; the end is cut first, for it may stand on the first line too.
    segment[-1] = segment[-1].encode()[: node.end_col_offset].decode()  # type: ignore[attr-defined]
    segment[0] = segment[0].encode()[node.col_offset :].decode()  # type: ignore[attr-defined]
    lines = _line_starts("".join(segment), first)
    wanted = text.count("\n") + 1
    # A form this does not follow (an escape such as \x0a) leaves lines over: they take the last one known.
    return tuple((lines + [lines[-1]] * wanted)[:wanted])


def _line_starts(segment: str, line: int) -> list[int]:
    """For a string literal as written, or several in a row: the file line of each line of its value."""
    starts = [line]
    empty = True  # nothing of the last line has been seen: the next piece may stand further down
    at = 0
    while at < len(segment):
        piece = _PIECE.match(segment, at)
        if not piece:
            end = segment.find("\n", at) if segment[at] == "#" else at
            at = len(segment) if end < 0 else end + 1
            line += segment[at - 1 : at] == "\n"
            continue
        raw, quote = "r" in piece.group(1).lower(), piece.group(2)
        at = piece.end()
        while at < len(segment) and not segment.startswith(quote, at):
            step = segment[at : at + 2] if segment[at] == "\\" else segment[at]
            if empty:
                starts[-1], empty = line, False
            line += "\n" in step
            joined = step == "\\\n" and not raw
            if ("\n" in step and not joined) or (step == "\\n" and not raw):
                starts.append(line)
                empty = True
            at += len(step)
        at += len(quote)
    return starts
