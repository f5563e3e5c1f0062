"""From what the rules saw to findings: one for each place of a violation, one for each kind of note."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernels.evaluate.evaluation import Finding
from kernels.evaluate.lint.rules import NOTE, VIOLATION, rule

__all__ = ["Sighting", "findings"]


@dataclass(frozen=True)
class Sighting:
    """A rule that matched on a line. ``doubt`` says why a violation is only a note here."""

    rule: str
    line: int
    message: str
    doubt: str = ""


def findings(path: str, seen: Iterable[Sighting]) -> list[Finding]:
    """Findings in the order of their lines."""
    made: dict[tuple[str, str, str], list[Sighting]] = {}
    library: list[Sighting] = []
    for one in sorted(set(seen), key=lambda sighting: (sighting.line, sighting.rule, sighting.message)):
        if one.rule == "library-call":
            library.append(one)
            continue
        violation = rule(one.rule).severity == VIOLATION and not one.doubt
        # Each violation stands alone; the same note on ten lines is one note.
        made.setdefault((one.rule, one.message, str(one.line) if violation else one.doubt), []).append(one)
    result = [_finding(path, group) for group in made.values()]
    if library:
        result.append(_library(path, library))
    return sorted(result, key=lambda finding: (finding.line, finding.rule))


def _finding(path: str, group: list[Sighting]) -> Finding:
    first = group[0]
    what = rule(first.rule)
    severity = NOTE if first.doubt else what.severity
    doubt = f" ({first.doubt})" if first.doubt else ""
    lines = sorted({one.line for one in group})
    evidence = {"lines": lines} if len(lines) > 1 else {}
    message = f"{first.message}{doubt}: {what.why}"
    return Finding(first.rule, severity, "lint", message, path, first.line, evidence)


def _library(path: str, group: list[Sighting]) -> Finding:
    """One note that lists every operation, each with its lines."""
    lines: dict[str, list[int]] = {}
    for one in group:
        lines.setdefault(one.message, []).append(one.line)
    listed = ", ".join(f"{name} (line {', '.join(map(str, where))})" for name, where in lines.items())
    message = f"leaves whole operations to a library: {listed}"
    return Finding("library-call", NOTE, "lint", message, path, group[0].line, {"calls": lines})
