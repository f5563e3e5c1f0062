"""An evaluation as one HTML page that needs nothing else: no network, no script, no other file.

Works on the JSON document alone. Sources, messages and logs are a candidate's words:
everything is escaped, and the page forbids itself scripts and requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernels.evaluate.evaluation import CHECKS
from kernels.report import words
from kernels.report.html_parts import measures
from kernels.report.html_parts.frame import frame
from kernels.report.html_parts.markup import Markup, element, join, table
from kernels.report.html_parts.precision_plot import precision_plot
from kernels.report.html_parts.source import source_block
from kernels.report.html_parts.timing_plot import spread_plot, timing_plot
from kernels.report.summary import (
    BAD,
    GOOD,
    PLAIN,
    WARN,
    check_document,
    headline,
    kind_of_time,
    meaning,
    preference,
    speed_verdicts,
    summary,
    told_trials,
    tone_of,
    tone_of_verdict,
    verdict_words,
)

__all__ = ["page"]

Document = Mapping[str, Any]


def page(document: Document) -> str:
    """The page; raises ``ValueError`` for a document of another schema."""
    check_document(document)
    sections = [(name, body) for name, part in _SECTIONS.items() if (body := part(document)) is not None]
    contents = element(
        "nav",
        element("ul", *(element("li", element("a", name, href=f"#{_anchor(name)}")) for name, _ in sections)),
        aria_label="Sections",
    )
    environment = document["environment"]
    about = f"{environment['device']}, torch {environment['torch']}, {environment['date']}"
    body = element(
        "main",
        element("h1", document["subject"]["name"]),
        element("p", about, class_="soft"),
        _banner(document),
        _tiles(document),
        contents,
        *(
            element(
                "section",
                element("h2", name, id=f"{_anchor(name)}-title"),
                part,
                id=_anchor(name),
                aria_labelledby=f"{_anchor(name)}-title",
            )
            for name, part in sections
        ),
        id="report",
    )
    return frame(f"{document['status']}: {document['subject']['name']}", body)


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


# -- the top ---------------------------------------------------------------------------------


def _banner(document: Document) -> Markup:
    status = document["status"]
    said = meaning(status)
    layer = f"decided by: {document['layer']}" if document["layer"] else ""
    return element(
        "div",
        element("strong", status, class_=tone_of(status)),
        element("span", layer, class_="soft") if layer else None,
        element("p", document["reason"] or said),
        element("p", said, class_="soft") if document["reason"] and said else None,
        class_=f"banner {tone_of(status)}",
        role="status",
    )


def _tiles(document: Document) -> Markup:
    tiles = []
    for line in summary(document):
        if line.name.startswith("speed"):
            continue
        value = element("div", line.text, class_=f"value {line.tone}" if line.tone != PLAIN else "value")
        detail = element("div", line.detail, class_="detail") if line.detail else None
        tiles.append(element("div", element("dt", line.name), element("dd", value, detail), class_="tile"))
    speeds = speed_verdicts(document)
    if speeds:
        row = headline(document)
        usual = kind_of_time(row) if row else ""
        rows = element("dd", *(_speed(document, verdict, usual) for verdict in speeds))
        title = "it claims to be" if document["status"] == "CHEAT" else "the candidate is"
        title += f" ({usual})" if usual else ""
        tiles.insert(1, element("div", element("dt", title), rows, class_="tile speeds"))
    return element("dl", *tiles, class_="tiles")


def _speed(document: Document, verdict: Mapping[str, Any], usual: str) -> Markup:
    tone = tone_of_verdict(document, verdict)
    word, link = verdict_words(verdict)
    between = f"{words.ratio(verdict['low'])} to {words.ratio(verdict['high'])}"
    between += f", {kind_of_time(verdict)}" if kind_of_time(verdict) != usual else ""
    return element(
        "div",
        element("span", word, class_=f"word {tone}"),
        element("span", f"{link} {words.printable(verdict['name'])}"),
        element(
            "span", element("strong", words.ratio(verdict["speedup"])), f"  ({between})", class_="detail"
        ),
        class_="speed",
    )


# -- timing ----------------------------------------------------------------------------------


def _timing(document: Document) -> Markup | None:
    timing = document["timing"]
    if not timing:
        return None
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(timing["rows"], key=preference):
        if row["samples_us"]:
            kinds.setdefault((row["mode"], row["cache"]), []).append(row)
    parts: list[object] = [element("p", "Input: ", ", ".join(words.inputs(timing["inputs"])), class_="soft")]
    for at, rows in enumerate(kinds.values()):
        title = f"Every sample, {kind_of_time(rows[0])}"
        if at == 0:
            parts += [element("h3", title), _strips(f"timing-{at}", title, rows)]
        else:
            inside = element("div", _strips(f"timing-{at}", title, rows), class_="inside")
            parts.append(element("details", element("summary", title), inside))
    return join([*parts, _timing_table(document), *_timing_notes(timing)])


def _strips(name: str, title: str, rows: list[Mapping[str, Any]]) -> Markup:
    times = timing_plot(name, title, rows)
    spread = spread_plot(f"{name}-spread", f"{title}: spread of each way", rows)
    how = "One dot is one sample; the line is the median and the shaded part the interval it lies in."
    own = spread.figure("The same samples, each way against its own median.") if spread else None
    return join([times.figure(how), own])


def _timing_table(document: Document) -> Markup:
    timing = document["timing"]
    verdicts = {(one["name"], one["mode"], one["cache"]): one for one in timing["verdicts"]}
    rows: list[str | tuple[object, ...]] = []
    kind = ""
    # The order of the document within a kind; what is compared stands together.
    for row in sorted(timing["rows"], key=preference):
        if kind != kind_of_time(row):
            kind = kind_of_time(row)
            rows.append(kind)
        verdict = verdicts.get((row["name"], row["mode"], row["cache"]))
        interval = words.NOTHING
        if row["low_us"] is not None:
            interval = f"{words.microseconds(row['low_us'])} to {words.microseconds(row['high_us'])}"
        rows.append(
            (
                element("strong", row["name"]) if row["name"] == "candidate" else row["name"],
                words.microseconds(row["median_us"]),
                interval,
                f"{len(row['samples_us']):,} x {row['calls_per_sample']:,}"
                if row["samples_us"]
                else words.NOTHING,
                f"{row['outliers']:,}" if row["samples_us"] else words.NOTHING,
                words.microseconds(row["outside_us"]),
                _verdict_cell(document, verdict),
            )
        )
    headers = (
        "way",
        "median, us",
        "95 % interval, us",
        "samples x calls",
        "outliers",
        "from outside, us",
        "candidate is",
    )
    found = table(headers, rows, "All times, microseconds a call")
    return join([found, element("p", " ".join(words.timing_terms(timing["rows"])), class_="soft")])


def _verdict_cell(document: Document, verdict: Mapping[str, Any] | None) -> object:
    if verdict is None:
        return words.NOTHING
    tone = tone_of_verdict(document, verdict)
    between = (
        f"{words.ratio(verdict['speedup'])} ({words.units(verdict['low'])} to {words.units(verdict['high'])})"
    )
    word, _ = verdict_words(verdict)
    return join([element("span", word, class_=tone), element("span", between, class_="soft")])


def _timing_notes(timing: Mapping[str, Any]) -> Iterator[Markup]:
    notes = [
        f"{words.printable(row['name'])}, {kind_of_time(row)}: {words.printable(row['note'])}"
        for row in timing["rows"]
        if row["note"] and row["name"] not in CHECKS
    ]
    if timing["fresh_ratio"] is not None:
        ratio = words.units(timing["fresh_ratio"])
        notes.append(f"Content never seen before takes {ratio} times as long as content seen before.")
    if timing["kernels_seen"] is not None:
        notes.append(
            f"{words.plural(timing['kernels_seen'], 'kernel')} seen to run on the GPU in a timed call."
        )
    notes += timing["notes"]
    clocks = timing["clocks"]
    if clocks:
        notes.append(measures.clocks_text(clocks))
    if notes:
        yield element("ul", *(element("li", note) for note in notes), class_="soft")
    if clocks and clocks["throttled"]:
        yield element("p", f"The GPU was held back: {words.printable(clocks['throttled'])}", class_="warn")


# -- precision -------------------------------------------------------------------------------


def _precision(document: Document) -> Markup | None:
    trials = document["trials"]
    if not trials:
        return None
    told = told_trials(trials)
    drawing = precision_plot("precision-plot", told)
    caption = (
        "A dot is the candidate's largest error; the bar is what is allowed, and 1 is the yardstick: "
        f"{words.YARDSTICK}."
    )
    parts = [drawing.figure(caption) if drawing else None, _trial_table(told)]
    if len(told) < len(trials):
        every = element("div", _trial_table(trials), class_="inside")
        parts.append(element("details", element("summary", f"All {len(trials):,} trials"), every))
    redrawn = sum(trial["redrawn"] for trial in trials)
    if redrawn:
        parts.append(
            element("p", f"Drawn again because the reference itself failed: {redrawn}", class_="soft")
        )
    parts += [_failure(trial) for trial in trials if not trial["passed"]]
    return join(parts)


def _trial_table(trials: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        (*_trial_cells(trial, output), _result(trial, output))
        for trial in trials
        for output in trial["outputs"] or (None,)
    ]
    headers = (
        "trial",
        "inputs",
        "largest error",
        "mean error",
        "largest relative",
        "x the yardstick",
        "wrong",
        "result",
    )
    return table(headers, rows, "Trials, each on fresh inputs", left=2)


def _trial_cells(trial: Mapping[str, Any], output: Mapping[str, Any] | None) -> tuple[object, ...]:
    inputs = element("span", ", ".join(words.inputs(trial["inputs"])), class_="mono inputs")
    if output is None:
        return (trial["name"], inputs, *[words.NOTHING] * 5)
    name = words.printable(trial["name"]) + (f" {words.printable(output['path'])}" if output["path"] else "")
    return (
        name,
        inputs,
        words.error(output["max_abs"]),
        words.error(output["mean_abs"]),
        words.error(output["max_rel"]),
        words.units(output["own_error_units"]),
        f"{words.wrong(output):,} of {output['total']:,}",
    )


def _result(trial: Mapping[str, Any], output: Mapping[str, Any] | None) -> object:
    """Of several outputs of a failed trial those that are wrong have failed."""
    others = [one for one in trial["outputs"] if words.wrong(one)]
    if not trial["passed"] and output is not None and others and output not in others:
        return words.NOTHING
    tone, word = (GOOD, "PASS") if trial["passed"] else (BAD, "FAIL")
    return element("span", word, class_=f"tag {tone}")


def _failure(trial: Mapping[str, Any]) -> Markup:
    facts: list[object] = []
    for output in trial["outputs"]:
        if output["first_bad"] is None:
            continue
        where = f"output{words.printable(output['path'])}{words.index(output['first_bad'])}"
        got, expected = words.number(output["got"]), words.number(output["expected"])
        facts += [
            element("dt", f"first wrong element, {where}"),
            element("dd", f"{got:.9g}, the reference has {expected:.9g}"),
        ]
    return element(
        "div",
        element(
            "h3",
            element("span", "FAIL", class_=f"tag {BAD}"),
            f" {words.printable(trial['name'])}, seed {trial['seed']}, seen by: ",
            trial["layer"],
        ),
        element("p", trial["reason"]),
        element("dl", *facts, class_="facts") if facts else None,
    )


# -- words -----------------------------------------------------------------------------------


def _findings(document: Document) -> Markup | None:
    if not document["findings"]:
        return None
    anchors = _source_anchors(document)
    rows = []
    for one in document["findings"]:
        tone = BAD if one["severity"] == "violation" else WARN
        place: object = words.lines_of(one)
        if one["path"] in anchors and one["line"]:
            place = element("a", place, href=f"#{anchors[one['path']]}-L{one['line']}")
        what = element("span", one["message"], element("span", place, class_="soft"), class_="cell-break")
        rows.append((element("span", one["severity"], class_=f"tag {tone}"), one["rule"], one["layer"], what))
    return table(("", "rule", "seen by", "what, and where"), rows, "Findings", left=4)


def _source_anchors(document: Document) -> dict[str, str]:
    return {source["path"]: f"candidate-{at}" for at, source in enumerate(document["subject"]["candidate"])}


def _skipped(document: Document) -> Markup | None:
    rows = []
    for part, why in (document["skipped"] or {}).items():
        reason, fix, command = words.printable(why).partition("fix:")
        rows.append(
            (
                part,
                element("span", reason.rstrip("; \n"), class_="cell-break"),
                element("code", command.strip()) if fix else words.NOTHING,
            )
        )
    return (
        table(("part", "why", "what mends it"), rows, "Parts that were not measured", left=3)
        if rows
        else None
    )


def _sources(document: Document) -> Markup:
    findings = document["findings"]
    parts: list[object] = []
    for side in ("candidate", "reference"):
        parts.append(element("h3", side.capitalize()))
        for at, source in enumerate(document["subject"][side]):
            mine = (
                [one for one in findings if one["path"] == source["path"] and one["line"]]
                if side == "candidate"
                else []
            )
            parts.append(source_block(f"{side}-{at}", source, mine))
        if not document["subject"][side]:
            parts.append(element("p", "none", class_="soft"))
    return join(parts)


def _log(document: Document) -> Markup | None:
    log = document["log"]
    if not log["text"]:
        return None
    about = f"{words.size(log['total_bytes'])} in all; never parsed"
    return element(
        "details",
        element("summary", "What the candidate printed ", element("span", about, class_="soft")),
        element(
            "pre",
            log["text"],
            class_="log scroll",
            tabindex="0",
            role="region",
            aria_label="log of the candidate",
        ),
        open=document["status"] != "PASS",
    )


def _phases(document: Document) -> Markup | None:
    phases = document["phases"]
    rows = [
        (one["name"], words.seconds(one["seconds"]), element("span", one["detail"], class_="cell-break"))
        for one in phases
    ]
    return table(("phase", "time", ""), rows, "Phases of the evaluation") if rows else None


def _environment(document: Document) -> Markup:
    environment = dict(document["environment"])
    facts = {name.replace("_", " "): value for name, value in environment.items() if value != ""}
    facts.update(seed=document["seed"], weights=document["weights"], gradients=document["gradients"])
    facts.update({f"option {name}": value for name, value in document["options"].items()})
    pairs = [
        one
        for name, value in facts.items()
        if value != ""
        for one in (element("dt", name), element("dd", value))
    ]
    return element("dl", *pairs, class_="facts")


_SECTIONS = {
    "Timing": _timing,
    "Precision": _precision,
    "Roofline": measures.roofline,
    "Launches": measures.launches,
    "Occupancy and stalls": measures.counters,
    "Machine code": measures.code,
    "Memory": measures.memory,
    "Sanitizer": measures.sanitizer,
    "Findings": _findings,
    "Not measured": _skipped,
    "Source": _sources,
    "Log": _log,
    "Phases": _phases,
    "Environment": _environment,
}
