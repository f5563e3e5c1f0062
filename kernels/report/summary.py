"""What a reader wants first from an evaluation, in the same words in every form of the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.evaluate.evaluation import BUSY, SCHEMA
from kernels.evaluate.status import MEANING
from kernels.report import words

__all__ = [
    "BAD",
    "GOOD",
    "PLAIN",
    "WARN",
    "Line",
    "WorstError",
    "candidate_rows",
    "check_document",
    "headline",
    "kind_of_time",
    "meaning",
    "preference",
    "speed_verdicts",
    "summary",
    "told_trials",
    "tone_of",
    "tone_of_verdict",
    "verdict_words",
    "worst_error",
]

Document = Mapping[str, Any]

# How a line is to be felt; each form of the report has its own colours for these.
GOOD, WARN, BAD, PLAIN = "good", "warn", "bad", "plain"

_MODES = {"graph": "graph replay", "eager": "eager", "host": "calling thread only"}
# A graph replay is the kernel's own time; eager adds what launching costs. Warm repeats better than cold.
_PREFERRED = (("graph", "warm"), ("graph", "cold"), ("eager", "warm"), ("eager", "cold"), ("host", "warm"))


@dataclass(frozen=True)
class Line:
    """One row of the summary: a word, what is to be said, how to feel about it, and what stands below."""

    name: str
    text: str
    tone: str = PLAIN
    detail: str = ""


@dataclass(frozen=True)
class WorstError:
    """The largest error of all trials in units of its yardstick, and where it was.

    The yardstick is the reference's own error or, where an element has a bound of its own
    (``of_element``), the larger of the reference's error there and what rounding to float32 moves.
    """

    units: float
    allowed: float | None
    trial: str
    error: float | None
    reference_error: float | None
    of_element: bool


def check_document(document: Document) -> None:
    """Raise ``ValueError``, naming given and supported, unless this is a report that can be shown."""
    given = document.get("schema")
    if given != SCHEMA or "status" not in document:
        what = f"schema {given}" if given is not None else "no schema"
        raise ValueError(f"not a report that can be shown: it has {what}; supported: schema {SCHEMA}")


def tone_of(status: str) -> str:
    """Green for a pass, yellow where the candidate is not to blame, red for the rest."""
    if status == "PASS":
        return GOOD
    return WARN if status in ("INVALID_REFERENCE", "TOOL_ERROR") else BAD


def tone_of_verdict(document: Document, verdict: Mapping[str, Any]) -> str:
    """A wrong program is not good for being fast: only a pass has good and bad speeds."""
    if document["status"] != "PASS":
        return PLAIN
    return {"faster": GOOD, "slower": BAD}.get(verdict["verdict"], PLAIN)


def verdict_words(verdict: Mapping[str, Any]) -> tuple[str, str]:
    """The verdict, and what joins it to a name: "faster", "than"."""
    word = str(verdict["verdict"])
    return word, {"same": "as", "unclear": "against"}.get(word, "than")


def meaning(status: str) -> str:
    """The documented meaning of a status; empty for one that is not known."""
    return next((text for known, text in MEANING.items() if known.value == status), "")


def kind_of_time(row: Mapping[str, Any]) -> str:
    """``graph replay, warm L2``; on the CPU, which has no such choice, nothing more than the mode."""
    mode = _MODES.get(row["mode"], row["mode"])
    return mode if row["mode"] == "host" else f"{mode}, {row['cache']} cache"


def candidate_rows(document: Document) -> list[Mapping[str, Any]]:
    """The candidate's own times, the most telling first; rows without a median are left out."""
    timing = document.get("timing") or {}
    rows = [
        row for row in timing.get("rows", ()) if row["name"] == "candidate" and row["median_us"] is not None
    ]
    return sorted(rows, key=preference)


def preference(row: Mapping[str, Any]) -> int:
    """The place of a row's or a verdict's kind of time among the kinds, the most telling first."""
    kind = (row["mode"], row["cache"])
    return _PREFERRED.index(kind) if kind in _PREFERRED else len(_PREFERRED)


def headline(document: Document) -> Mapping[str, Any] | None:
    """The one time to quote: the candidate's most telling row."""
    return next(iter(candidate_rows(document)), None)


def speed_verdicts(document: Document) -> list[Mapping[str, Any]]:
    """One verdict for each baseline, in the headline's kind of time or the next best it has."""
    timing = document.get("timing") or {}
    best: dict[str, Mapping[str, Any]] = {}
    for verdict in sorted(timing.get("verdicts", ()), key=preference):
        best.setdefault(verdict["name"], verdict)
    return list(best.values())


def worst_error(document: Document) -> WorstError | None:
    """Over every output of every trial; None where no output could be set against float64."""
    worst: WorstError | None = None
    for trial in document.get("trials", ()):
        for output in trial["outputs"]:
            own = words.number(output["own_error_units"])
            if own is None or (worst and own <= worst.units):
                continue
            reference, allowed = (
                words.number(output["reference_error"]),
                words.number(output["allowed_error"]),
            )
            limit = allowed / reference if allowed is not None and reference else None
            error, of_element = words.number(output["oracle_error"]), output.get("bound_at") is not None
            worst = WorstError(own, limit, trial["name"], error, reference, of_element)
    return worst


def told_trials(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The trials that are told one by one: of the timed calls' outputs that agreed, only the worst."""
    timed = [trial for trial in trials if trial["kind"] == "timed" and trial["passed"]]
    if len(timed) < 3:
        return list(trials)
    worst = max(timed, key=_own_error)
    told = [trial for trial in trials if trial not in timed]
    place = next(at for at, trial in enumerate(trials) if trial in timed)
    before = sum(trial not in timed for trial in trials[:place])
    told.insert(before, {**worst, "name": f"timed, worst of {len(timed):,}"})
    return told


def _own_error(trial: Mapping[str, Any]) -> float:
    known = [words.number(output["own_error_units"]) for output in trial["outputs"]]
    return max((value for value in known if value is not None and not math.isnan(value)), default=0.0)


# -- the summary, line by line ---------------------------------------------------------------


def summary(document: Document) -> list[Line]:
    """The lines of the summary in the order they are read; a part that was not measured has none."""
    return [line for part in _PARTS for line in part(document)]


def _time(document: Document) -> Iterator[Line]:
    row = headline(document)
    if row:
        low, high = words.microseconds(row["low_us"]), words.microseconds(row["high_us"])
        sure = f"{100 * row['confidence']:.0f} % interval {low} to {high} us"
        text = f"{words.microseconds(row['median_us'])} us a call"
        busy = next((f"; {BUSY}" for note in document["timing"]["notes"] if note.startswith(BUSY)), "")
        tone = WARN if busy else PLAIN
        yield Line(f"time{_claimed(document)}", text, tone, f"{sure}, {kind_of_time(row)}{busy}")


def _claimed(document: Document) -> str:
    """What is put behind a time that a cheat says it took."""
    return " it claims" if document["status"] == "CHEAT" else ""


def _speed(document: Document) -> Iterator[Line]:
    row = headline(document)
    for verdict in speed_verdicts(document):
        tone = tone_of_verdict(document, verdict)
        word, link = verdict_words(verdict)
        name, by = words.printable(verdict["name"]), words.ratio(verdict["speedup"])
        text = f"{word} {link} {name}, {by}"
        other = (verdict["mode"], verdict["cache"]) != ((row or verdict)["mode"], (row or verdict)["cache"])
        kind = f", {kind_of_time(verdict)}" if other else ""
        detail = f"interval {words.ratio(verdict['low'])} to {words.ratio(verdict['high'])}{kind}"
        yield Line(f"speed{_claimed(document)}", text, tone, detail)


def _error(document: Document) -> Iterator[Line]:
    worst = worst_error(document)
    if worst is None:
        largest = _largest_difference(document)
        if largest:
            yield Line(
                "worst error", f"{words.error(largest[0])} from the reference", PLAIN, f"trial {largest[1]}"
            )
        return
    tone = BAD if worst.allowed is not None and worst.units > worst.allowed else PLAIN
    allowed = f", allowed {words.units(worst.allowed)}" if worst.allowed is not None else ""
    yardstick = f"yardstick {words.error(worst.reference_error)}, the reference's own error"
    if worst.of_element:
        yardstick += " there or what rounding to float32 moves"
    yield Line(
        "worst error",
        f"{words.units(worst.units)} x the yardstick{allowed}",
        tone,
        f"trial {words.printable(worst.trial)}: {words.error(worst.error)} against float64; {yardstick}",
    )


def _largest_difference(document: Document) -> tuple[float, str] | None:
    found = [
        (words.number(output["max_abs"]) or 0.0, words.printable(trial["name"]))
        for trial in document.get("trials", ())
        for output in trial["outputs"]
    ]
    return max(found, key=lambda one: one[0]) if found else None


def _memory(document: Document) -> Iterator[Line]:
    memory = document.get("memory")
    if memory:
        parts = (
            f"allocator {words.size(memory['allocator_bytes'])}, direct {words.size(memory['direct_bytes'])}"
        )
        text = f"{words.size(memory['extra_bytes'])} beyond inputs and outputs"
        yield Line("memory", text, PLAIN, parts if memory["extra_bytes"] else "")


def _launches(document: Document) -> Iterator[Line]:
    launches = document.get("launches")
    if launches is not None:
        count = sum(launch["count"] for launch in launches)
        text = f"{words.plural(count, 'launch')} a call of {words.plural(len(launches), 'kernel')}"
        yield Line("launches", text, WARN if not launches else PLAIN)


def _limit(document: Document) -> Iterator[Line]:
    roofline = document.get("roofline")
    if roofline:
        text = f"{words.share(roofline['share'])} of the {roofline['limit']} limit"
        detail = (
            f"limit {words.microseconds(roofline['limit_us'])} us, "
            f"physical floor {words.microseconds(roofline['floor_us'])} us"
        )
        below = roofline["time_us"] < roofline["floor_us"]
        above = (words.number(roofline["share"]) or 0.0) > 1
        if above and not below:
            detail += "; more than this machine did when its ceilings were measured"
        yield Line("limit", text, BAD if below else WARN if above else PLAIN, detail)


def _trials(document: Document) -> Iterator[Line]:
    trials = document.get("trials", ())
    if not trials:
        return
    passed = sum(trial["passed"] for trial in trials)
    extra = {True: "deterministic", False: "not deterministic"}.get(document.get("deterministic"))  # type: ignore[arg-type]
    # "missing: RuntimeError: ..." is told in full elsewhere
    gradients = words.printable(document.get("gradients") or "").partition(":")[0]
    parts = [extra or "", f"gradients {gradients}" if gradients else ""]
    tone = GOOD if passed == len(trials) else BAD
    yield Line("trials", f"{passed} of {len(trials)} passed", tone, ", ".join(part for part in parts if part))


def _findings(document: Document) -> Iterator[Line]:
    findings: Sequence[Mapping[str, Any]] = document.get("findings", ())
    violations = sum(one["severity"] == "violation" for one in findings)
    notes = len(findings) - violations
    text = f"{words.plural(violations, 'violation')}, {words.plural(notes, 'note')}"
    yield Line("findings", text, BAD if violations else PLAIN)


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(words.printable, names))


def _skipped(document: Document) -> Iterator[Line]:
    skipped = document.get("skipped") or {}
    if skipped:
        # What can be mended is worth a colour; that a CPU has no counters is not.
        tone = WARN if any("fix:" in str(why) for why in skipped.values()) else PLAIN
        yield Line("not measured", words.plural(len(skipped), "part"), tone, _listed(skipped))


_PARTS = (_time, _speed, _error, _trials, _memory, _launches, _limit, _findings, _skipped)
