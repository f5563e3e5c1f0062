"""The verdict is a function of the data, and verify finds whatever in a report does not follow."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernels.evaluate.evaluation import (
    ClockBatch,
    Evaluation,
    Finding,
    OutputError,
    Source,
    Subject,
    TimingRow,
    TimingSection,
    TrialResult,
)
from kernels.evaluate.outcome import failure_finding, reference_finding, status_of
from kernels.evaluate.result import Environment, as_json
from kernels.evaluate.rules import (
    CANDIDATE,
    CLOCK,
    OFTEN,
    REPEATED,
    clock_finding,
    floor_finding,
    graph_clock_finding,
    judged,
    repeat_finding,
    round_trip_note,
    round_trip_of,
)
from kernels.evaluate.status import Status
from kernels.evaluate.timing.statistics import compare, summarise
from kernels.evaluate.verdict import decide
from kernels.evaluate.verify import differences
from kernels.evaluate.workers.isolation import WorkerFailed

GOOD = OutputError(
    "", (2,), "float32", 1e-7, 1e-8, 1e-7, 1e-8, 0, 2, 1e-4, 1e-4, None, None, None, 1e-7, 1e-7, 1e-5, 1.0
)
BAD = replace(GOOD, mismatched=1, first_bad=(1,), got=2.0, expected=1.0, max_abs=1.0)
FAR = replace(GOOD, oracle_error=1.0)


def trial(name: str = "default", passed: bool = True, layer: str = "", **words: Any) -> TrialResult:
    given: dict[str, Any] = {"kind": "default", "seed": 1, "inputs": ("float32[2]",), **words}
    reason = "" if passed else "it is wrong"
    return TrialResult(name=name, passed=passed, layer=layer, reason=reason, **given)


def failed(status: Status, layer: str = "call") -> Finding:
    return Finding("failure", "violation", layer, "words", evidence={"status": status.value, "kind": "x"})


LINT = Finding("garbage-collector", "violation", "lint", "hunts")
CLOCK_LIES = Finding("clock", "violation", "clock", "lies")


@pytest.mark.parametrize(
    ("trials", "findings", "status", "layer"),
    [
        ([trial()], [], Status.PASS, ""),
        ([], [], Status.TOOL_ERROR, "judge"),
        ([trial(), trial("b", False, "output")], [], Status.WRONG_OUTPUT, "output"),
        ([trial("b", False, "mutation")], [], Status.CHEAT, "mutation"),
        ([trial("b", False, "alias")], [], Status.CHEAT, "alias"),
        ([trial("b", False, "type")], [], Status.CHEAT, "type"),
        ([trial("b", False, "late")], [], Status.CHEAT, "late"),
        ([trial("b", False, "order")], [], Status.CHEAT, "order"),
        ([trial("b", False, "output"), trial("b, again 1")], [], Status.NONDETERMINISTIC, "output"),
        ([trial("b", False, "output"), trial("c", seed=2)], [], Status.WRONG_OUTPUT, "output"),
        ([trial()], [failed(Status.TIMEOUT)], Status.TIMEOUT, "call"),
        ([trial("b", False, "output")], [failed(Status.TIMEOUT)], Status.WRONG_OUTPUT, "output"),
        ([trial("b", False, "output")], [failed(Status.TOOL_ERROR, "judge")], Status.TOOL_ERROR, "judge"),
        ([trial()], [failed(Status.TIMEOUT), failed(Status.TOOL_ERROR, "judge")], Status.TOOL_ERROR, "judge"),
        ([], [failed(Status.INVALID_REFERENCE, "reference")], Status.INVALID_REFERENCE, "reference"),
        ([], [failed(Status.INVALID_CANDIDATE, "import"), LINT], Status.INVALID_CANDIDATE, "import"),
        ([trial()], [LINT], Status.CHEAT, "lint"),
        ([trial()], [LINT, CLOCK_LIES], Status.CHEAT, "clock"),
        ([trial("b", False, "output")], [LINT], Status.WRONG_OUTPUT, "output"),
        ([trial()], [failed(Status.RUNTIME_ERROR), LINT], Status.RUNTIME_ERROR, "call"),
        ([trial()], [replace(LINT, severity="note")], Status.PASS, ""),
    ],
)
def test_the_verdict(trials: Any, findings: Any, status: Status, layer: str) -> None:
    decision = decide(trials, findings)
    assert (decision.status, decision.layer) == (status, layer)
    assert bool(decision.reason) == (status is not Status.PASS)


@pytest.mark.parametrize(
    ("kind", "reply", "status"),
    [
        ("timeout", {}, Status.TIMEOUT),
        ("memory", {}, Status.OUT_OF_MEMORY),
        ("died", {}, Status.RUNTIME_ERROR),
        ("protocol", {}, Status.RUNTIME_ERROR),
        ("error", {"type": "ValueError", "bases": ["ValueError", "Exception"]}, Status.RUNTIME_ERROR),
        ("error", {"type": "CompileError", "bases": ["CompileError"]}, Status.COMPILE_ERROR),
        ("error", {"text": "RuntimeError: Error building extension 'x'"}, Status.COMPILE_ERROR),
        ("error", {"type": "OutOfMemoryError", "bases": ["OutOfMemoryError"]}, Status.OUT_OF_MEMORY),
        ("error", {"text": "DefaultCPUAllocator: can't allocate memory"}, Status.OUT_OF_MEMORY),
        ("error", {"type": "ToolchainError", "bases": ["ToolchainError"]}, Status.TOOL_ERROR),
        ("error", {"status": "INVALID_CANDIDATE"}, Status.INVALID_CANDIDATE),
        # What an exception of the candidate's own claims.
        ("error", {"status": "PASS"}, Status.RUNTIME_ERROR),
        ("error", {"status": "TOOL_ERROR"}, Status.RUNTIME_ERROR),
        ("error", {"status": ["PASS"], "bases": 3, "text": None}, Status.RUNTIME_ERROR),
    ],
)
def test_who_is_to_blame(kind: str, reply: dict[str, Any], status: Status) -> None:
    failure = WorkerFailed(kind, "words", reply)
    assert status_of(failure) is status
    assert failure_finding("call", failure).evidence["status"] == status.value


def test_a_reference_that_needs_a_gpu() -> None:
    failure = WorkerFailed("error", "RuntimeError: Found no NVIDIA driver on your system.", {})
    assert "needs a GPU" in reference_finding(failure, "cpu").message
    assert reference_finding(failure, "cuda").evidence["status"] == "INVALID_REFERENCE"


# -- rules -----------------------------------------------------------------------------------------


def row(
    name: str, samples: list[float], calls: int = 4, outside: float | None = None, note: str = ""
) -> TimingRow:
    return summarise(name, "eager", "warm", samples, calls, outside, note)


def rows(fresh: float, repeated: float, inside: float, outside: float) -> dict[str, TimingRow]:
    spread = [0.97, 0.98, 0.99, 1.0, 1.0, 1.0, 1.01, 1.02, 1.03, 1.0, 1.0]
    made = [
        row(CANDIDATE, [fresh * s for s in spread], outside=fresh),
        row(REPEATED, [repeated * s for s in spread]),
        row(CLOCK, [inside * s for s in spread], 1000, outside),
    ]
    return {one.name: one for one in made}


@pytest.mark.parametrize(
    ("fresh", "repeated", "inside", "outside", "rule"),
    [
        (100, 100, 100, 100, ""),
        (100, 100, 100, 104, ""),
        (140, 100, 100, 100, ""),  # cold caches
        (160, 100, 100, 100, "repeat"),
        (100, 20, 20, 20, "repeat"),
        (100, 100, 50, 100, "clock"),
        (30, 30, 100, 100, "clock"),
        (10, 10, 10, 100, "clock"),
    ],
)
def test_rules_on_samples(fresh: float, repeated: float, inside: float, outside: float, rule: str) -> None:
    made = rows(fresh, repeated, inside, outside)
    found = [one.rule for one in (clock(made), repeat_finding(made)) if one is not None]
    assert found == ([rule] if rule else [])


@pytest.mark.parametrize("often", [100, 20])
def test_content_may_cost_less_only_after_many_calls(often: float) -> None:
    made = rows(100, 100, 100, 100)
    made[OFTEN] = row(OFTEN, [often] * 11)
    found = repeat_finding(made)
    assert (found is not None) == (often < 100)
    assert found is None or (found.rule, "seen often" in found.message) == ("repeat", True)


def clock(made: dict[str, TimingRow], **load: Any) -> Finding | None:
    """The rule on ``made``, whose long batches had ``load`` (a :class:`ClockBatch`'s fields)."""
    check, short_us = made[CLOCK], made[CANDIDATE].median_us
    assert check.outside_us is not None
    words = {"waited_us": 0.0, "cpu_us": check.outside_us, **load}
    batches = [ClockBatch(inside, check.outside_us, **words) for inside in check.samples_us]
    return clock_finding(short_us, batches, check.calls_per_sample, 100.0, processors=2)


@pytest.mark.parametrize(
    ("fresh", "inside", "outside", "load", "severity"),
    [
        # Three of four parts of long batches went to others; short samples ran undisturbed.
        (25, 100, 100, {"waited_us": 75.0, "cpu_us": 25.0}, "note"),
        (100, 100, 400, {"waited_us": 290.0, "cpu_us": 100.0}, "note"),
        (100, 100, 104, {"waited_us": 0.0, "cpu_us": 100.0}, None),
        # The kernel keeps no record: what it ran is all that counts.
        (25, 100, 100, {"waited_us": None, "cpu_us": 25.0}, "note"),
        (25, 100, 100, {"waited_us": None, "cpu_us": 100.0}, "note"),
        (10, 100, 100, {"waited_us": None, "cpu_us": 100.0}, "violation"),
        (25, 100, 100, {"waited_us": None, "cpu_us": 0.0}, "note"),
        # A clock that runs at a tenth of its speed, while others take three parts of four.
        (10, 40, 400, {"waited_us": 300.0, "cpu_us": 100.0}, "violation"),
        # Threads spin until one that waits has run: they used the processor, and nothing is known.
        (25, 100, 100, {"waited_us": 75.0, "cpu_us": 150.0}, "note"),
    ],
)
def test_the_load_of_the_machine_is_no_evidence(
    fresh: float, inside: float, outside: float, load: dict[str, Any], severity: str | None
) -> None:
    found = clock(rows(fresh, inside, inside, outside), **load)
    assert (found and found.severity) == severity
    if found is not None and severity == "note":
        assert "waited for a processor" in found.message or "waiting for a processor" in found.message


def test_a_busy_machine_is_no_cheat() -> None:
    made = rows(100, 100, 100, 100)
    noisy = [100.0, 5000.0, 100.0, 9000.0, 101.0, 99.0, 7000.0, 100.0, 100.0, 4000.0, 100.0]
    made[REPEATED], made[CANDIDATE] = row(REPEATED, sorted(noisy)), row(CANDIDATE, noisy[::-1])
    assert repeat_finding(made) is None
    assert clock(made) is None


def test_rules_without_samples() -> None:
    assert clock_finding(None, [ClockBatch(1.0, 1.0)], 1, 1.0, 1) is None
    assert clock_finding(1.0, [], 1, 1.0, 1) is None
    assert repeat_finding({}) is None
    assert graph_clock_finding(TimingRow(CANDIDATE, "graph", "warm"), 5.0) is None


def test_the_floor_and_the_replay_clock() -> None:
    assert floor_finding(10.0, 5.0) is None
    assert floor_finding(4.0, 5.0) is not None
    replay = summarise(CANDIDATE, "graph", "warm", [5.0] * 9, 200)
    assert graph_clock_finding(replay, 1100.0) is None
    assert graph_clock_finding(replay, 3000.0) is not None


def test_the_round_trip_is_in_the_note() -> None:
    assert round_trip_of(row(CLOCK, [1.0], note=round_trip_note(107.25))) == 107.25


def test_what_an_output_is_judged_by() -> None:
    assert judged(GOOD) == ""
    assert "1 of 2 elements" in judged(BAD)
    assert "against float64" in judged(FAR)
    assert "against float64" in judged(replace(GOOD, oracle_error=float("nan")))
    assert judged(replace(GOOD, bound_at=(1,))) == ""
    assert "at (1,) the error against float64 is 1;" in judged(replace(FAR, bound_at=(1,)))


# -- verify ------------------------------------------------------------------------------------------


def document() -> dict[str, Any]:
    made = rows(100, 98, 100, 103)
    made[CLOCK] = replace(made[CLOCK], note=round_trip_note(80.0))
    reference = row("reference", [210.0 + i for i in range(11)])
    candidate = made[CANDIDATE]
    count = len(made[REPEATED].samples_us)
    ratio = candidate.median_us / made[REPEATED].median_us if candidate.median_us and count else None
    section = TimingSection(
        inputs=("float32[2]",),
        rows=(*made.values(), reference),
        verdicts=(compare(candidate, reference),),
        fresh_ratio=ratio,
        batches=tuple(ClockBatch(inside, 103.0, 0.0, 100.0) for inside in made[CLOCK].samples_us),
    )
    text = "class ModelNew: pass\n"

    digest = hashlib.sha256(text.encode()).hexdigest()
    found = Evaluation(
        status="PASS",
        reason="",
        layer="",
        subject=Subject("a / b", "files", (), (Source("b.py", digest, text),)),
        device="cpu",
        seed=1,
        environment=Environment("cpu", "", "", "2.14", "3.11", 1, "2026-11-30", "python -m kernels"),
        options={},
        trials=(replace(trial(), outputs=(GOOD, replace(GOOD, allowed_error=float("inf")))),),
        timing=section,
    )
    return json.loads(json.dumps(as_json(found)))


def test_a_report_that_follows() -> None:
    assert differences(document()) == []


def test_a_report_of_an_element_beyond_its_own_bound() -> None:
    far = replace(FAR, bound_at=(1,))
    wrong = replace(trial(passed=False, layer="output"), outputs=(far,), reason=judged(far))
    found = decide([wrong], [])
    words = {"status": found.status.value, "reason": found.reason, "layer": found.layer, "timing": None}
    told = json.loads(json.dumps(as_json([wrong])))
    assert differences({**document(), **words, "trials": told}) == []
    told[0]["outputs"][0]["bound_at"] = [0]
    assert any("the figures say" in line for line in differences({**document(), **words, "trials": told}))


def forged(change: Callable[[dict[str, Any]], None]) -> list[str]:
    changed = copy.deepcopy(document())
    change(changed)
    return differences(changed)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(status="CHEAT"), "status"),
        (lambda d: d.update(reason="because"), "reason"),
        (lambda d: d["timing"]["rows"][0].update(median_us=50.0), "candidate, eager, warm: median_us"),
        (lambda d: d["timing"]["rows"][0].update(low_us=1.0), "low_us"),
        (lambda d: d["timing"]["rows"][0].update(outliers=3), "outliers"),
        (lambda d: d["timing"]["verdicts"][0].update(verdict="slower"), "verdict on reference"),
        (lambda d: d["timing"]["verdicts"][0].update(speedup=9.0), "speedup"),
        (lambda d: d["timing"].update(verdicts=[]), "missing"),
        (lambda d: d["timing"].update(fresh_ratio=2.0), "fresh_ratio"),
        (lambda d: d["timing"]["rows"][1].update(samples_us=[10.0] * 11), "rule repeat"),
        (lambda d: d["timing"]["rows"][2].update(samples_us=[10.0] * 11), "clock check: samples_us"),
        (lambda d: [b.update(outside_us=500.0) for b in d["timing"]["batches"]], "rule clock"),
        (lambda d: d["trials"][0]["outputs"][0].update(mismatched=1), "passed, but"),
        (lambda d: d["trials"][0]["outputs"][0].update(oracle_error=1.0), "passed, but"),
        (lambda d: d["trials"][0].update(passed=False, reason="x", layer="output"), "every figure is within"),
        (lambda d: d.update(trials=[]), "status"),
        (lambda d: d["subject"]["candidate"][0].update(text="other"), "sha256"),
        (lambda d: d["findings"].append(as_json(CLOCK_LIES)), "rule clock"),
        (lambda d: d.pop("trials"), "incomplete"),
        (lambda d: d.update(schema=99), "schema"),
        (lambda d: d["trials"][0].update(extra=1), "extra"),
    ],
)
def test_reports_that_do_not_follow(change: Callable[[dict[str, Any]], None], said: str) -> None:
    found = forged(change)
    assert any(said in line for line in found), found
