"""C++ and CUDA as tokens: what is code, what is a string, and what is neither.

Comments and ``#if 0`` blocks are gone, a backslash at the end of a line joins it with the
next, raw strings keep what looks like a comment or a quote, and every token knows its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Token", "tokens"]


@dataclass(frozen=True)
class Token:
    """``kind``: "name", "number", "string", "char", "mark" or "directive".

    ``text`` of a string or char is what stands between its quotes, escapes as written; of a
    directive its name (``include``). ``line`` is 1-based; ``at`` is the offset in the text.
    """

    kind: str
    text: str
    line: int
    at: int


_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_NAME = re.compile(r"[^\W\d]\w*")
# 1'000, 0x1p-3f, 1e+5: a sign belongs to a number only after an exponent's letter.
_NUMBER = re.compile(r"\.?\d(?:[eEpP][+-]|'?[\w.])*")
_RAW = re.compile(r'(?:u8|[uUL])?R"([^()\\\s]{0,16})\(')
_QUOTED = re.compile(r"(?:u8|[uUL])?([\"'])")
_INCLUDED = re.compile(r"\s*<([^>\n]*)>")
_SPACE = re.compile(r"[^\S\n]+")


def tokens(text: str) -> list[Token]:
    """The tokens of a C++ or CUDA source; a literal or comment left open ends with its line or the text."""
    return list(_without_dead_blocks(_scan(text)))


class _Reader:
    """A place in the text that counts lines as it moves."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1

    def move(self, end: int) -> str:
        """Everything up to ``end``, which becomes the place."""
        passed = self.text[self.at : end]
        self.line += passed.count("\n")
        self.at = end
        return passed


def _scan(text: str) -> Iterator[Token]:
    reader = _Reader(text)
    line_start = True  # only blanks since the last line break: a '#' here opens a directive
    in_directive = False
    while reader.at < len(text):
        at, line, character = reader.at, reader.line, text[reader.at]
        if match := _SPLICE.match(text, at) or _SPACE.match(text, at):
            reader.move(match.end())
        elif character == "\n":
            if in_directive:
                yield Token("mark", "\n", line, at)
            reader.move(at + 1)
            line_start, in_directive = True, False
        elif text.startswith("//", at):
            reader.move(_end_of_line(text, at))
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            reader.move(len(text) if end < 0 else end + 2)
        elif character == "#" and line_start:
            yield from _directive(reader, line)
            line_start, in_directive = False, True
        else:
            line_start = False
            yield _literal(reader) or _plain(reader)


def _directive(reader: _Reader, line: int) -> Iterator[Token]:
    """``#name``; the header of an ``#include <...>`` as a string, for it holds no code."""
    start = reader.at
    gap = _SPACE.match(reader.text, reader.at + 1)
    name = _NAME.match(reader.text, gap.end() if gap else reader.at + 1)
    reader.move(name.end() if name else start + 1)
    yield Token("directive", name.group() if name else "", line, start)
    if name and name.group() == "include" and (header := _INCLUDED.match(reader.text, reader.at)):
        yield Token("string", header.group(1), line, reader.at)
        reader.move(header.end())
    elif name and name.group() in ("error", "warning", "pragma"):
        reader.move(_end_of_line(reader.text, reader.at))  # prose, in which an apostrophe is no literal


def _end_of_line(text: str, at: int) -> int:
    """Where the logical line ends: a backslash before the line break carries it on."""
    while True:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        if not text[:end].rstrip("\r \t").endswith("\\") or not text[at:end].rstrip("\r \t"):
            return end
        at = end + 1


def _literal(reader: _Reader) -> Token | None:
    text, at, line = reader.text, reader.at, reader.line
    if raw := _RAW.match(text, at):
        close = f'){raw.group(1)}"'
        end = text.find(close, raw.end())
        reader.move(len(text) if end < 0 else end + len(close))
        return Token("string", text[raw.end() : len(text) if end < 0 else end], line, at)
    opened = _QUOTED.match(text, at)
    if not opened:
        return None
    quote, position = opened.group(1), opened.end()
    inside: list[str] = []
    while position < len(text) and text[position] not in (quote, "\n"):
        if splice := _SPLICE.match(text, position):
            position = splice.end()
            continue
        step = 2 if text[position] == "\\" else 1
        inside.append(text[position : position + step])
        position += step
    closed = position < len(text) and text[position] == quote
    reader.move(min(position + closed, len(text)))
    return Token("string" if quote == '"' else "char", "".join(inside), line, at)


def _plain(reader: _Reader) -> Token:
    text, at, line = reader.text, reader.at, reader.line
    if match := _NAME.match(text, at):
        kind = "name"
    elif match := _NUMBER.match(text, at):
        kind = "number"
    else:
        length = next((len(mark) for mark in ("<<<", "::", "->") if text.startswith(mark, at)), 1)
        return Token("mark", reader.move(at + length), line, at)
    return Token(kind, reader.move(match.end()), line, at)


def _without_dead_blocks(stream: Iterator[Token]) -> Iterator[Token]:
    """Everything but what stands under ``#if 0`` (and the ``#else`` of ``#if 1``)."""
    # For each open #if: is this branch read? None once a condition is not a plain 0 or 1.
    alive: list[bool | None] = []
    waiting: Token | None = None
    for token in stream:
        if waiting:
            constant = {"0": False, "1": True}.get(token.text) if token.kind == "number" else None
            alive.append(constant)
            waiting = None
        if token.kind == "directive":
            if token.text == "if":
                waiting = token
            elif token.text in ("ifdef", "ifndef"):
                alive.append(None)
            elif token.text == "endif" and alive:
                alive.pop()
            elif token.text in ("else", "elif") and alive and alive[-1] is not None:
                alive[-1] = None if token.text == "elif" else not alive[-1]
        if False not in alive:
            yield token
