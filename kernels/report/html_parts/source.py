"""Sources with their syntax in colour, a number for each line, and the findings where they belong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pygments import lex
from pygments.lexer import Lexer
from pygments.lexers import CLexer, CppLexer, PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

from kernels.report import words
from kernels.report.html_parts.markup import Markup, element, text

__all__ = ["source_block"]

# Colouring a longer text costs more than it helps; it is shown as it is.
_LONGEST = 300_000
_CLASSES = (
    (Comment.Preproc, "p"),
    (Comment, "c"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (String, "s"),
    (Number, "n"),
    (Name.Decorator, "p"),
    (Name.Function, "f"),
    (Name.Class, "f"),
)


def source_block(anchor: str, source: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Markup:
    """A closed ``details`` with one file; ``findings`` are those in it. Line n has the id ``anchor-Ln``."""
    remarks: dict[int, list[Mapping[str, Any]]] = {}
    for finding in findings:
        remarks.setdefault(finding["line"], []).append(finding)
    code = words.printable(source["text"])
    rows = [
        row
        for line, parts in enumerate(_coloured(code, source["path"]), 1)
        for row in _line(f"{anchor}-L{line}", parts, remarks.get(line, []))
    ]
    about = f"{words.plural(code.count(chr(10)), 'line')}, sha256 {words.printable(source['sha256'])[:12]}"
    noted = f", {words.plural(len(findings), 'finding')}" if findings else ""
    return element(
        "details",
        element("summary", source["path"], " ", element("span", about + noted, class_="soft")),
        element(
            "pre",
            element("code", *rows),
            class_="source scroll",
            tabindex="0",
            role="region",
            aria_label=f"source of {source['path']}",
        ),
    )


def _line(anchor: str, parts: list[Markup], remarks: Sequence[Mapping[str, Any]]) -> Iterator[Markup]:
    severity = None
    if remarks:
        severity = "violation" if any(one["severity"] == "violation" for one in remarks) else "note"
    yield element("span", *parts, "\n", class_=f"row {severity}" if severity else "row", id=anchor)
    for one in remarks:
        said = f"{one['severity']} {one['rule']}: {one['message']}"
        yield element("span", said, "\n", class_=f"remark {one['severity']}")


def _coloured(code: str, path: str) -> list[list[Markup]]:
    """For each line its pieces; a token that spans lines is cut at their ends."""
    lines: list[list[Markup]] = [[]]
    for kind, value in _tokens(code, path):
        class_ = next((name for known, name in _CLASSES if kind in known), None)
        for at, piece in enumerate(value.split("\n")):
            if at:
                lines.append([])
            if piece:
                lines[-1].append(element("span", piece, class_=class_) if class_ else text(piece))
    if lines and not lines[-1]:
        lines.pop()
    return lines


def _tokens(code: str, path: str) -> Iterator[tuple[_TokenType | tuple[()], str]]:
    if len(code) > _LONGEST:
        yield (), code
        return
    yield from lex(code, _lexer(path))


def _lexer(path: str) -> Lexer:
    ending = path.rpartition(".")[2].lower()
    # CUDA's additions to C++ are names to this lexer, and read well enough.
    kind = PythonLexer if ending in ("py", "pyi") else CLexer if ending == "c" else CppLexer
    return kind(stripnl=False, ensurenl=False)
