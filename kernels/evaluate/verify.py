"""Does a report follow from its own raw data: every median, interval, verdict, rule and the status.

Reads the JSON document alone; nothing is measured and no torch is needed. What differs is
named with both values. A report from another release may differ where the method changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernels.evaluate.evaluation import SCHEMA, ClockBatch, Finding, OutputError, TimingRow, TrialResult
from kernels.evaluate.rules import (
    CANDIDATE,
    CHECKS,
    CLOCK,
    CLOCK_RULE,
    FLOOR,
    FRESH,
    REPEAT,
    REPEATED,
    clock_finding,
    floor_finding,
    judged,
    ratio_of,
    repeat_finding,
    round_trip_of,
)
from kernels.evaluate.timing.statistics import compare, summarise
from kernels.evaluate.verdict import decide

__all__ = ["differences"]

# Decimal text of a float is exact; the slack is for another Python's arithmetic.
_CLOSE = 1e-9


def differences(document: Mapping[str, Any]) -> list[str]:
    """One line for each figure that does not follow; empty when all do."""
    if document.get("schema") != SCHEMA:
        return [f"schema is {document.get('schema')!r}; this release reads {SCHEMA}"]
    try:
        return list(_differences(document))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"the document is incomplete: {type(error).__name__}: {error}"]


def _differences(document: Mapping[str, Any]) -> Iterator[str]:
    yield from _sources(document["subject"])
    trials = [_trial(one) for one in document["trials"]]
    findings = [_read(Finding, one) for one in document["findings"]]
    for trial in trials:
        yield from _judgement(trial)
    timing = document["timing"]
    if timing is not None:
        rows = [_read(TimingRow, row) for row in timing["rows"]]
        yield from _rows(rows)
        yield from _batches(rows, timing)
        yield from _verdicts(rows, timing)
    yield from _rules(timing, document["roofline"], findings)
    roofline = document["roofline"]
    if roofline is not None:
        yield from _roofline(roofline)
    decision = decide(trials, findings)
    for name, value in (
        ("status", decision.status.value),
        ("reason", decision.reason),
        ("layer", decision.layer),
    ):
        yield from _same(name, document[name], value)


def _sources(subject: Mapping[str, Any]) -> Iterator[str]:
    for side in ("reference", "candidate"):
        for source in subject[side]:
            digest = hashlib.sha256(source["text"].encode()).hexdigest()
            if source["sha256"] and digest != source["sha256"]:
                yield f"{side} {source['path']}: its text has another sha256 than the report says"


def _judgement(trial: TrialResult) -> Iterator[str]:
    reasons = [reason for reason in map(judged, trial.outputs) if reason]
    if trial.passed and (reasons or trial.layer or trial.reason):
        yield f"trial {trial.name}: passed, but {(reasons or [trial.reason or trial.layer])[0]}"
    if not trial.passed and not trial.layer:
        yield f"trial {trial.name}: failed, and no layer says why"
    if not trial.passed and trial.layer == "output" and trial.outputs and not reasons:
        yield f"trial {trial.name}: failed on its output, but every figure is within bounds"
    if reasons and not trial.passed and reasons[0] not in trial.reason:
        yield f"trial {trial.name}: the reason is {trial.reason!r}, the figures say {reasons[0]!r}"


def _rows(rows: Sequence[TimingRow]) -> Iterator[str]:
    for row in rows:
        again = summarise(row.name, row.mode, row.cache, row.samples_us, row.calls_per_sample)
        for field in ("median_us", "low_us", "high_us", "outliers"):
            where = f"{row.name}, {row.mode}, {row.cache}: {field}"
            yield from _same(where, getattr(row, field), getattr(again, field))


def _verdicts(rows: Sequence[TimingRow], timing: Mapping[str, Any]) -> Iterator[str]:
    by_key = {(row.name, row.mode, row.cache): row for row in rows}
    told = {(one["name"], one["mode"], one["cache"]): one for one in timing["verdicts"]}
    expected = [key for key, row in by_key.items() if key[0] not in CHECKS and row.samples_us]
    for key in expected:
        mine = by_key.get((CANDIDATE, *key[1:]))
        if key[0] == CANDIDATE or mine is None or not mine.samples_us:
            continue
        if key not in told:
            yield f"verdict on {', '.join(key)}: missing"
            continue
        again = compare(mine, by_key[key])
        for field in ("verdict", "speedup", "low", "high"):
            yield from _same(f"verdict on {', '.join(key)}: {field}", told[key][field], getattr(again, field))
    for key in told:
        if key not in by_key:
            yield f"verdict on {', '.join(key)}: there are no samples of it"
    fresh = by_key.get((FRESH, "eager", "warm")) or by_key.get((CANDIDATE, "eager", "warm"))
    repeated = by_key.get((REPEATED, "eager", "warm"))
    if fresh and repeated:
        yield from _same("timing.fresh_ratio", timing["fresh_ratio"], ratio_of(fresh, repeated))


def _rules(timing: Any, roofline: Any, findings: Sequence[Finding]) -> Iterator[str]:
    """The rules that follow from samples must have the findings, and no others."""
    again: list[Finding] = []
    if timing is not None:
        eager = {
            row.name: row
            for row in (_read(TimingRow, row) for row in timing["rows"])
            if (row.mode, row.cache) == ("eager", "warm")
        }
        again += filter(None, [_clock(eager, timing), repeat_finding(eager)])
    if roofline is not None:
        again += filter(None, [floor_finding(roofline["time_us"], roofline["floor_us"])])
    for rule in (CLOCK_RULE, REPEAT, FLOOR):
        told = [finding.message for finding in findings if finding.rule == rule]
        found = [finding.message for finding in again if finding.rule == rule]
        if told != found:
            yield f"rule {rule}: the report says {told or 'nothing'}, the samples say {found or 'nothing'}"


def _clock(eager: Mapping[str, TimingRow], timing: Any) -> Finding | None:
    check, mine = eager.get(CLOCK), eager.get(CANDIDATE)
    if check is None or mine is None:
        return None
    batches = [_read(ClockBatch, batch) for batch in timing.get("batches", ())]
    trip, processors = round_trip_of(check), timing.get("processors", 1)
    return clock_finding(mine.median_us, batches, check.calls_per_sample, trip, processors)


def _batches(rows: Sequence[TimingRow], timing: Mapping[str, Any]) -> Iterator[str]:
    """The long batches are the samples of the row that is made of them."""
    check = next((row for row in rows if row.name == CLOCK), None)
    told = [_number(batch["inside_us"]) for batch in timing.get("batches", ())]
    if check is not None and told:
        yield from _same(f"{CLOCK}: samples_us", list(check.samples_us), told)


def _roofline(roofline: Mapping[str, Any]) -> Iterator[str]:
    time_us = _number(roofline["time_us"])
    for field, value in (
        ("achieved_tflops", _number(roofline["flops"]) / time_us / 1e6),
        ("achieved_gbps", _number(roofline["least_bytes"]) / time_us / 1e3),
        ("share", _number(roofline["limit_us"]) / time_us),
    ):
        yield from _same(f"roofline.{field}", roofline[field], value)


def _same(name: str, told: Any, again: Any) -> Iterator[str]:
    told, again = _number(told), _number(again)
    if isinstance(told, float) and isinstance(again, (int, float)):
        both_nan = math.isnan(told) and math.isnan(again)
        if both_nan or told == again or math.isclose(told, again, rel_tol=_CLOSE, abs_tol=1e-12):
            return
    elif told == again:
        return
    yield f"{name}: the report says {told!r}, the raw data say {again!r}"


# -- JSON to data --------------------------------------------------------------------------------


def _trial(words: Mapping[str, Any]) -> TrialResult:
    trial = _read(TrialResult, words)
    outputs = tuple(_read(OutputError, one) for one in words["outputs"])
    return dataclasses.replace(trial, outputs=outputs)


def _read(kind: Any, words: Mapping[str, Any]) -> Any:
    """``words`` as a dataclass; lists become tuples and the words for non-finite numbers numbers."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    unknown = sorted(set(words) - set(fields))
    if unknown:
        raise ValueError(f"{kind.__name__} has no {', '.join(unknown)}")
    return kind(**{name: _value(value, fields[name]) for name, value in words.items()})


def _value(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return tuple(_number(item) if "float" in kind else _value(item, "") for item in value)
    return _number(value) if "float" in kind else value


def _number(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value
