"""Several evaluations side by side: status, time, speed-ups, errors, and what differs around them.

Two reports were not timed in one interleaved run, so one candidate is called faster than
another only where both passed, on the same device, on the same inputs, against the same
reference, and by more than two runs of one kernel differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from kernels.report import words
from kernels.report.html_parts.frame import frame
from kernels.report.html_parts.markup import Markup, element, join
from kernels.report.html_parts.markup import table as html_table
from kernels.report.html_parts.timing_plot import timing_plot
from kernels.report.style import section, stacked, styled, table
from kernels.report.summary import (
    BAD,
    GOOD,
    PLAIN,
    WARN,
    candidate_rows,
    check_document,
    headline,
    kind_of_time,
    preference,
    speed_verdicts,
    tone_of,
    worst_error,
)

__all__ = ["RUN_TO_RUN", "Versus", "differences", "page", "show", "versus"]

Document = Mapping[str, Any]

# How far the medians of one kernel in two processes may lie apart: the repeatability
# that is asked of the judge at 5 us, so no smaller difference between reports means anything.
RUN_TO_RUN = 0.02


@dataclass(frozen=True)
class Versus:
    """One candidate beside another: "faster", "same", "slower", or "" with the reason in ``why``.

    ``ratio`` is the other's median divided by this one's; None where there is no verdict.
    """

    verdict: str
    ratio: float | None = None
    why: str = ""


def versus(document: Document, other: Document) -> Versus:
    """How the candidate of ``document`` compares with that of ``other``, where that can be said."""
    why = _not_comparable(document, other)
    mine, theirs = _same_kind([document, other])
    if why or mine is None or theirs is None:
        return Versus("", None, why or "they have no kind of time in common")
    return _told_apart(mine, theirs)


def _told_apart(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Versus:
    ratio = theirs["median_us"] / mine["median_us"]
    apart = mine["high_us"] < theirs["low_us"] or theirs["high_us"] < mine["low_us"]
    if not apart or abs(ratio - 1) <= RUN_TO_RUN:
        return Versus("same", ratio)
    return Versus("faster" if ratio > 1 else "slower", ratio)


def _not_comparable(document: Document, other: Document) -> str:
    for one in (document, other):
        if one["status"] != "PASS":
            return f"{words.printable(one['subject']['name'])} did not pass: {words.printable(one['status'])}"
        if not candidate_rows(one):
            return "one of them was not timed"
    devices = [words.printable(one["environment"]["device"]) for one in (document, other)]
    if document["device"] != other["device"] or devices[0] != devices[1]:
        return f"measured on different devices: {devices[0]} and {devices[1]}"
    if _reference(document) != _reference(other):
        return "judged against different references"
    if document["timing"]["inputs"] != other["timing"]["inputs"]:
        return "timed on different inputs"
    return ""


def _reference(document: Document) -> list[str]:
    return sorted(source["sha256"] for source in document["subject"]["reference"])


def _same_kind(documents: Sequence[Document]) -> list[Mapping[str, Any] | None]:
    """The candidate's row of each in the most telling kind of time that all timed ones have."""
    rows = [{preference(row): row for row in candidate_rows(one)} for one in documents]
    shared = set.intersection(*(set(one) for one in rows if one)) if any(rows) else set()
    return [one.get(min(shared)) if shared else None for one in rows]


def differences(documents: Sequence[Document]) -> dict[str, list[str]]:
    """What is not the same around all of them: for each name the value in each report."""
    around = []
    for document in documents:
        facts = {name: words.printable(value) for name, value in document["environment"].items()}
        for unlike in ("command", "date"):  # of course they differ
            facts.pop(unlike, None)
        facts["run on"] = words.printable(document["device"])
        facts["seed"] = words.printable(document["seed"])
        facts["reference"] = ", ".join(digest[:12] for digest in _reference(document))
        facts.update(
            {f"option {name}": words.printable(value) for name, value in document["options"].items()}
        )
        if document["timing"]:
            facts["timed inputs"] = ", ".join(words.inputs(document["timing"]["inputs"]))
        around.append(facts)
    names = list(dict.fromkeys(name for facts in around for name in facts))
    values = {name: [facts.get(name, words.NOTHING) for facts in around] for name in names}
    return {name: listed for name, listed in values.items() if len(set(listed)) > 1}


# -- one row for each report -------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """What the table says of one report; pairs are what stands above and below in a cell."""

    letter: str
    name: tuple[str, str]
    status: tuple[str, str]
    time: tuple[str, str]
    speed: tuple[str, str]
    error: tuple[str, str]
    memory: str
    limit: str
    beside: tuple[str, str, str]  # verdict, detail, tone


def _beside_first(documents: Sequence[Document]) -> list[tuple[Mapping[str, Any] | None, Versus]]:
    """For each report the time to show and how it compares with the first.

    All that can be compared with the first are shown, and compared, in one kind of time.
    """
    first = documents[0]
    reasons = ["", *(_not_comparable(one, first) for one in documents[1:])]
    shared = _same_kind([one for one, why in zip(documents, reasons, strict=True) if not why])
    own = shared[0]
    found: list[tuple[Mapping[str, Any] | None, Versus]] = []
    for document, why in zip(documents, reasons, strict=True):
        row = headline(document) if why else shared.pop(0)
        if why or row is None or own is None:
            why = why or "they have no kind of time in common"
            found.append((row or headline(document), Versus("", None, why)))
        else:
            found.append((row, _told_apart(row, own)))
    return found


def _rows(documents: Sequence[Document]) -> list[_Row]:
    beside = _beside_first(documents)
    return [_row(at, document, *beside[at]) for at, document in enumerate(documents)]


def _row(at: int, document: Document, row: Mapping[str, Any] | None, found: Versus) -> _Row:
    candidate = document["subject"]["candidate"]
    path = words.printable(candidate[0]["path"]) if candidate else ""
    time = (words.microseconds(row["median_us"]), kind_of_time(row)) if row else (words.NOTHING, "")
    speed = next(iter(speed_verdicts(document)), None)
    worst = worst_error(document)
    memory, roofline = document["memory"], document["roofline"]
    return _Row(
        letter=_letter(at),
        name=(words.printable(document["subject"]["name"]), path),
        status=(words.printable(document["status"]), words.printable(document["environment"]["date"])),
        time=time,
        speed=(words.ratio(speed["speedup"]), words.printable(speed["name"]))
        if speed
        else (words.NOTHING, ""),
        error=(words.units(worst.units), words.units(worst.allowed)) if worst else (words.NOTHING, ""),
        memory=words.size(memory["extra_bytes"]) if memory else words.NOTHING,
        limit=words.share(roofline["share"]) if roofline else words.NOTHING,
        beside=_beside(at, found),
    )


def _letter(at: int) -> str:
    """A, B, ... Z, A2, B2, ..."""
    return chr(ord("A") + at % 26) + (str(at // 26 + 1) if at >= 26 else "")


def _beside(at: int, found: Versus) -> tuple[str, str, str]:
    if at == 0 or not found.verdict:
        return (words.NOTHING, "", PLAIN)
    tone = {"faster": GOOD, "slower": BAD}.get(found.verdict, PLAIN)
    return (found.verdict, words.ratio(found.ratio), tone)


def _refusals(documents: Sequence[Document]) -> list[str]:
    """Why A and another cannot be compared, for each pair that cannot."""
    beside = _beside_first(documents)
    return [
        f"{_letter(at)} and A are not compared: {found.why}"
        for at, (_, found) in enumerate(beside)
        if at and not found.verdict
    ]


def _checked(documents: Sequence[Document]) -> None:
    if not documents:
        raise ValueError("nothing to compare: no reports were given; supported: one or more")
    for document in documents:
        check_document(document)


def _method() -> str:
    return (
        "Each report is a run of its own. Faster and slower are said where the intervals do not touch "
        f"and the medians differ by more than {100 * RUN_TO_RUN:.0f} %, which two runs of one kernel may."
    )


# -- terminal ----------------------------------------------------------------------------------


def show(console: Console, documents: Sequence[Document]) -> None:
    """Print the comparison; raises ``ValueError`` for none, or for one of another schema."""
    _checked(documents)
    rows = table()
    rows.add_column("", no_wrap=True)
    rows.add_column(stacked("what", "candidate"), overflow="fold")
    rows.add_column(stacked("status", "date"), min_width=10, overflow="fold")
    rows.add_column(stacked("median, us", "kind"), justify="right")
    rows.add_column(stacked("speed-up", "over"), justify="right", overflow="fold")
    rows.add_column(stacked("error", "allowed"), justify="right", no_wrap=True)
    rows.add_column(stacked("memory", "limit"), justify="right", no_wrap=True)
    if len(documents) > 1:
        rows.add_column(stacked("than A", "speed-up"), justify="right", no_wrap=True)
    for row in _rows(documents):
        cells = [
            Text(row.letter, "bold"),
            stacked(*row.name),
            stacked(styled(row.status[0], tone_of(row.status[0])), row.status[1]),
            stacked(*row.time),
            stacked(*row.speed),
            stacked(*row.error),
            stacked(row.memory, row.limit),
        ]
        if len(documents) > 1:
            word, detail, tone = row.beside
            cells.append(stacked(styled(word, tone), detail))
        rows.add_row(*cells)
    console.print(rows)
    console.print()
    console.print(
        Text(f"error and allowed: in units of {words.YARDSTICK}; memory: beyond inputs and outputs", "dim")
    )
    if len(documents) == 1:
        return
    console.print(Text(_method(), "dim"))
    for refusal in _refusals(documents):
        console.print(styled(refusal, WARN))
    _show_differences(console, documents)


def _show_differences(console: Console, documents: Sequence[Document]) -> None:
    section(console, "What differs around them")
    found = differences(documents)
    if not found:
        console.print(Text("nothing: device, versions, seed, options, reference and inputs are the same"))
        return
    rows = table()
    rows.add_column("", no_wrap=True)
    for at in range(len(documents)):
        rows.add_column(_letter(at), overflow="fold")
    for name, values in found.items():
        rows.add_row(Text(name), *map(Text, values))
    console.print(rows)


# -- page --------------------------------------------------------------------------------------


def page(documents: Sequence[Document]) -> str:
    """The comparison as one self-contained HTML page; raises ``ValueError`` as :func:`show` does."""
    _checked(documents)
    names = ", ".join(dict.fromkeys(words.printable(one["subject"]["name"]) for one in documents))
    body = element(
        "main",
        element("h1", names),
        element("p", f"{words.plural(len(documents), 'report')} side by side", class_="soft"),
        _page_table(documents),
        element("p", _method(), class_="soft") if len(documents) > 1 else None,
        *(element("p", refusal, class_="warn") for refusal in _refusals(documents)),
        _page_times(documents),
        _page_differences(documents),
        id="report",
    )
    return frame(f"Comparison: {names}", body)


def _page_table(documents: Sequence[Document]) -> Markup:
    rows = []
    for row in _rows(documents):
        word, detail, tone = row.beside
        rows.append(
            (
                _pair(
                    element("span", element("strong", f"{row.letter}: "), row.name[0], class_="cell-break"),
                    element("span", row.name[1], class_="cell-break"),
                ),
                _pair(element("span", row.status[0], class_=f"tag {tone_of(row.status[0])}"), row.status[1]),
                _pair(*row.time),
                _pair(*row.speed),
                _pair(*row.error),
                _pair(row.memory, row.limit),
                _pair(element("span", word, class_=tone), detail),
            )
        )
    headers = (
        _pair("what", "candidate"),
        _pair("status", "date"),
        _pair("median, us", "kind of time"),
        _pair("speed-up", "over"),
        _pair("error, x the yardstick", "allowed"),
        _pair("extra memory", "share of the limit"),
        _pair("than A", "speed-up"),
    )
    return html_table(headers, rows, "Reports side by side", left=2)


def _pair(first: object, second: object) -> Markup:
    below = element("span", second, class_="soft") if second else None
    return join([element("span", first), below])


def _page_times(documents: Sequence[Document]) -> Markup | None:
    """The samples of all that can be compared; the others have no place on a shared axis."""
    rows = [
        {**row, "name": f"{_letter(at)}: {words.printable(documents[at]['subject']['name'])}"}
        for at, (row, found) in enumerate(_beside_first(documents))
        if row and row["samples_us"] and (found.verdict or at == 0)
    ]
    if not rows:
        return None
    title = f"Every sample, {kind_of_time(rows[0])}"
    how = "One dot is one sample; the line is the median and the shaded part the interval it lies in."
    times = timing_plot("times", title, rows).figure(how)
    return join([element("h2", title), times])


def _page_differences(documents: Sequence[Document]) -> Markup | None:
    if len(documents) == 1:
        return None
    found = differences(documents)
    heading = element("h2", "What differs around them")
    if not found:
        same = "Nothing: device, versions, seed, options, reference and inputs are the same."
        return join([heading, element("p", same)])
    headers = ("", *(_letter(at) for at in range(len(documents))))
    rows = [
        (name, *(element("span", value, class_="cell-break") for value in values))
        for name, values in found.items()
    ]
    return join([heading, html_table(headers, rows, "Differences", left=len(documents) + 1)])
