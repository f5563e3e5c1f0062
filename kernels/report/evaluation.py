"""An evaluation on a terminal: ten lines that say what came of it, then every detail.

Works on the JSON document alone. From 80 columns up; colours only where the console has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernels.evaluate.evaluation import CHECKS
from kernels.report import words
from kernels.report.measures import show_measures
from kernels.report.style import is_wide, section, stacked, styled, table
from kernels.report.summary import (
    BAD,
    GOOD,
    PLAIN,
    WARN,
    candidate_rows,
    check_document,
    kind_of_time,
    meaning,
    summary,
    told_trials,
    tone_of,
    tone_of_verdict,
    verdict_words,
)

__all__ = ["show"]

_LOG_LINES = 20
# Notes of one rule that are told one by one; a package's headers have many of the same.
_ALIKE = 3


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Print the report; raises ``ValueError`` for a document of another schema."""
    check_document(document)
    _banner(console, document)
    _summary(console, document)
    _trials(console, document["trials"])
    if document["timing"]:
        _timing(console, document)
    show_measures(console, document)
    _findings(console, document["findings"])
    _skipped(console, document["skipped"])
    _phases(console, document["phases"])
    _log(console, document)
    _environment(console, document)


# -- the ten seconds -------------------------------------------------------------------------


def _banner(console: Console, document: Mapping[str, Any]) -> None:
    status = words.printable(document["status"])
    subject = words.printable(document["subject"]["name"])
    where = f"{document['device']}: {words.printable(document['environment']['device'])}"
    console.print(Text.assemble(styled(status, tone_of(status)), f"  {subject}  ", (where, "dim")))
    reason = words.printable(document["reason"]) or meaning(status)
    layer = words.printable(document["layer"])
    console.print(Text.assemble(reason, (f"  (decided by: {layer})" if layer else "", "dim")))
    console.print()


def _summary(console: Console, document: Mapping[str, Any]) -> None:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    if is_wide(console):
        lines.add_column(overflow="fold")
    previous = ""
    for line in summary(document):
        name = Text("" if line.name == previous else line.name, "dim")
        previous = line.name
        if is_wide(console):
            lines.add_row(name, styled(line.text, line.tone), Text(line.detail, "dim"))
        else:
            lines.add_row(name, stacked(styled(line.text, line.tone), line.detail))
    console.print(lines)


# -- trials ----------------------------------------------------------------------------------


def _trials(console: Console, trials: Sequence[Mapping[str, Any]]) -> None:
    if not trials:
        return
    section(console, "Trials")
    wide = is_wide(console)
    rows = table()
    rows.add_column(Text("trial") if wide else stacked("trial", "inputs"), overflow="fold")
    if wide:
        rows.add_column("inputs", overflow="fold", ratio=1)
    rows.add_column(stacked("largest error", "mean"), justify="right", no_wrap=True)
    rows.add_column(stacked("x the yardstick", "allowed"), justify="right")
    rows.add_column(stacked("elements wrong", "of"), justify="right")
    rows.add_column("result", no_wrap=True)
    failed: list[Mapping[str, Any]] = []
    for trial in told_trials(trials):
        if not trial["passed"]:
            failed.append(trial)
        result = styled("PASS", GOOD) if trial["passed"] else styled(f"FAIL {len(failed)}", BAD)
        name = words.printable(trial["name"])
        inputs = words.inputs(trial["inputs"])
        first = (Text(name), Text(", ".join(inputs))) if wide else (stacked(name, "\n".join(inputs)),)
        rows.add_row(*first, *_error_cells(trial["outputs"]), result)
    console.print(rows)
    if any(output["own_error_units"] is not None for trial in trials for output in trial["outputs"]):
        console.print(Text(f"yardstick: {words.YARDSTICK}", "dim"))
    redrawn = sum(trial["redrawn"] for trial in trials)
    if redrawn:
        console.print(Text(f"drawn again because the reference itself failed: {redrawn}", "dim"))
    for position, trial in enumerate(failed, 1):
        _failure(console, position, trial)


def _error_cells(outputs: Sequence[Mapping[str, Any]]) -> list[Text]:
    """The worst of a trial's outputs; most have one."""
    if not outputs:
        return [Text(words.NOTHING)] * 3
    worst = max(outputs, key=lambda one: words.number(one["max_abs"]) or 0.0)
    own = max(outputs, key=lambda one: words.number(one["own_error_units"]) or 0.0)
    reference, allowed = words.number(own["reference_error"]), words.number(own["allowed_error"])
    limit = words.units(allowed / reference) if allowed is not None and reference else words.NOTHING
    wrong = sum(words.wrong(one) for one in outputs)
    total = sum(one["total"] for one in outputs)
    return [
        stacked(words.error(worst["max_abs"]), words.error(worst["mean_abs"])),
        stacked(words.units(own["own_error_units"]), limit),
        stacked(styled(f"{wrong:,}", BAD if wrong else PLAIN), f"{total:,}"),
    ]


def _failure(console: Console, position: int, trial: Mapping[str, Any]) -> None:
    console.print()
    where = f"  {words.printable(trial['name'])} ({trial['kind']}), seed {trial['seed']}, seen by: "
    console.print(Text.assemble(styled(f"FAIL {position}", BAD), where, words.printable(trial["layer"])))
    console.print(Text(words.printable(trial["reason"])))
    for output in trial["outputs"]:
        if output["mismatched"] and not _is_told(trial["reason"], output):
            console.print(Text(_mismatch(output)))


def _is_told(reason: str, output: Mapping[str, Any]) -> bool:
    """Whether a trial's reason, by ``kernels/evaluate/rules.py``, has what :func:`_mismatch` says."""
    return f"output{output['path']}: {output['mismatched']} of {output['total']} elements differ" in reason


def _mismatch(output: Mapping[str, Any]) -> str:
    """Where an output is wrong: how many, the first, both values, and the largest difference."""
    shape = f"{output['dtype']}{words.index(output['shape'])}"
    wrong = f"{output['mismatched']:,} of {output['total']:,}"
    text = (
        f"output{words.printable(output['path'])} {shape}: {wrong} out of "
        f"{output['atol']:g} + {output['rtol']:g} x |reference|"
    )
    if output["first_bad"] is not None:
        got, expected = words.number(output["got"]), words.number(output["expected"])
        text += f"; first at {words.index(output['first_bad'])}: {got:.9g}, the reference has {expected:.9g}"
    return f"{text}; largest difference {words.error(output['max_abs'])}"


# -- timing ----------------------------------------------------------------------------------


def _timing(console: Console, document: Mapping[str, Any]) -> None:
    timing = document["timing"]
    section(console, "Timing of " + ", ".join(words.inputs(timing["inputs"])))
    wide = is_wide(console)
    rows = table()
    rows.add_column(Text("way") if wide else stacked("way", "kind of time"), overflow="fold")
    if wide:
        rows.add_column("kind of time", no_wrap=True)
    rows.add_column(stacked("median, us", "95 % interval"), justify="right", no_wrap=True)
    rows.add_column(stacked("samples", "outliers"), justify="right", no_wrap=True)
    if wide:
        rows.add_column(stacked("from outside", "us"), justify="right", no_wrap=True)
    rows.add_column(stacked("candidate is", "speed-up, interval"), justify="right", no_wrap=True)
    verdicts = {(one["name"], one["mode"], one["cache"]): one for one in timing["verdicts"]}
    for row in timing["rows"]:
        name, kind = words.printable(row["name"]), kind_of_time(row)
        style = "bold" if row["name"] == "candidate" else ""
        cells = [Text(name, style), Text(kind)] if wide else [stacked(name, kind, style)]
        cells.append(stacked(words.microseconds(row["median_us"]), _interval(row), style))
        taken = f"{len(row['samples_us']):,} x {row['calls_per_sample']:,}"
        cells.append(stacked(taken, f"{row['outliers']:,}") if row["samples_us"] else Text(words.NOTHING))
        if wide:
            cells.append(Text(words.microseconds(row["outside_us"])))
        cells.append(_verdict(document, verdicts.get((row["name"], row["mode"], row["cache"]))))
        rows.add_row(*cells)
    console.print(rows)
    _timing_notes(console, timing)


def _interval(row: Mapping[str, Any]) -> str:
    if row["low_us"] is None:
        return ""
    return f"{words.microseconds(row['low_us'])} - {words.microseconds(row['high_us'])}"


def _verdict(document: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> Text:
    if verdict is None:
        return Text(words.NOTHING)
    tone = tone_of_verdict(document, verdict)
    between = f"{words.units(verdict['low'])} - {words.units(verdict['high'])}"
    word, _ = verdict_words(verdict)
    return stacked(styled(word, tone), f"{words.ratio(verdict['speedup'])}, {between}")


def _without_outside(timing: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows as a narrow table shows them."""
    return [{**row, "outside_us": None} for row in timing["rows"]]


def _timing_notes(console: Console, timing: Mapping[str, Any]) -> None:
    for term in words.timing_terms(timing["rows"] if is_wide(console) else _without_outside(timing)):
        console.print(Text(term, "dim"))
    for row in timing["rows"]:
        if row["note"] and row["name"] not in CHECKS:
            text = f"{words.printable(row['name'])}, {kind_of_time(row)}: {words.printable(row['note'])}"
            console.print(Text(text))
    if timing["fresh_ratio"] is not None:
        ratio = words.units(timing["fresh_ratio"])
        console.print(Text(f"content never seen before takes {ratio} times as long as content seen before"))
    if timing["kernels_seen"] is not None:
        console.print(
            Text(f"{words.plural(timing['kernels_seen'], 'kernel')} seen to run on the GPU in a timed call")
        )
    for note in timing["notes"]:
        console.print(Text(words.printable(note)))
    if timing["clocks"]:
        _clocks(console, timing["clocks"])


def _clocks(console: Console, clocks: Mapping[str, Any]) -> None:
    spans = [
        (f"SM {_span(clocks['sm_mhz'])} of {clocks['max_sm_mhz']} MHz"),
        f"memory {_span(clocks['memory_mhz'])} MHz",
        f"{_span(clocks['temperature_c'])} degrees C",
        f"{_span(clocks['power_w'])} W",
    ]
    console.print(Text("; ".join(spans), "dim"))
    if clocks["throttled"]:
        console.print(styled(f"held back: {words.printable(clocks['throttled'])}", WARN))


def _span(values: Sequence[float]) -> str:
    if not values:
        return words.NOTHING
    low, high = min(values), max(values)
    return f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f}-{high:.0f}"


# -- what else there is to say ---------------------------------------------------------------


def _findings(console: Console, findings: Sequence[Mapping[str, Any]]) -> None:
    if not findings:
        return
    section(console, "Findings")
    rows = table()
    rows.add_column("", no_wrap=True)
    rows.add_column(stacked("rule", "seen by"), no_wrap=True)
    rows.add_column(stacked("what", "where"), overflow="fold")
    more: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        alike = more.setdefault((one["rule"], one["layer"]), [])
        alike += [one["path"]] if one["severity"] == "note" else []
        if len(alike) > _ALIKE:
            continue
        severity = styled(one["severity"], BAD if one["severity"] == "violation" else WARN)
        what = stacked(words.printable(one["message"]), words.lines_of(one))
        rows.add_row(severity, stacked(words.printable(one["rule"]), words.printable(one["layer"])), what)
    console.print(rows)
    for (rule, _), paths in more.items():
        rest = paths[_ALIKE:]
        if rest:
            where = words.plural(len(set(rest)), "file")
            told = f"{words.printable(rule)}: {len(rest):,} more in {where}; the page and the JSON have them"
            console.print(Text(told, "dim"))


def _skipped(console: Console, skipped: Mapping[str, str]) -> None:
    if not skipped:
        return
    section(console, "Not measured")
    rows = table()
    rows.add_column("part", overflow="fold")
    rows.add_column("why, and what mends it", overflow="fold")
    for part, why in skipped.items():
        reason, fix, command = words.printable(why).partition("fix:")
        text = Text(reason.rstrip("; \n"))
        if fix:
            text.append(f"\nfix:{command}", "bold")
        rows.add_row(Text(words.printable(part)), text)
    console.print(rows)


def _phases(console: Console, phases: Sequence[Mapping[str, Any]]) -> None:
    if not phases:
        return
    section(console, "Phases")
    rows = table()
    rows.add_column("phase", overflow="fold")
    rows.add_column("time", justify="right", no_wrap=True)
    rows.add_column("", overflow="fold")
    for phase in phases:
        detail = Text(words.printable(phase["detail"]))
        rows.add_row(Text(words.printable(phase["name"])), words.seconds(phase["seconds"]), detail)
    console.print(rows)


def _log(console: Console, document: Mapping[str, Any]) -> None:
    """The end of what the candidate printed, where that may help: when it did not pass."""
    log = document["log"]
    lines = words.printable(log["text"]).splitlines()
    if not lines or document["status"] == "PASS":
        return
    section(console, "What the candidate printed")
    if len(lines) > _LOG_LINES:
        console.print(Text(f"... the last {_LOG_LINES} of {len(lines):,} lines kept", "dim"))
    for line in lines[-_LOG_LINES:]:
        console.print(Text(line, "dim"), soft_wrap=True)
    console.print(Text(f"{words.size(log['total_bytes'])} in all", "dim"))


def _environment(console: Console, document: Mapping[str, Any]) -> None:
    """Where, with what and when: a number without these means little."""
    environment = document["environment"]
    parts = [environment["device"]]
    parts += [f"driver {environment['driver']}"] if environment["driver"] else []
    parts += [f"CUDA {environment['cuda']}"] if environment["cuda"] else []
    parts += [f"{environment['threads']} threads", f"torch {environment['torch']}"]
    parts += [f"Python {environment['python']}", environment["date"], f"seed {document['seed']}"]
    console.print()
    console.print(Text(words.printable(", ".join(parts)), "dim"))
    if document["gradients"]:
        console.print(Text(f"gradients: {words.printable(document['gradients'])}", "dim"))
    if document["weights"]:
        console.print(Text(f"weights: {words.printable(document['weights'])}", "dim"))
    if environment["command"]:
        console.print(Text(words.printable(environment["command"]), "dim"), soft_wrap=True)
    if len(candidate_rows(document)) == 0 and document["status"] == "PASS":
        console.print(styled("nothing was timed", WARN))
