"""The report of an evaluation on a terminal."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
import report_documents as made
from report_documents import HOSTILE, document
from rich.console import Console

from kernels.evaluate import rules
from kernels.evaluate.evaluation import BUSY, FRESH, Evaluation, Finding
from kernels.report import words
from kernels.report.evaluation import show
from kernels.report.html import page
from kernels.report.summary import headline, speed_verdicts, summary, told_trials, verdict_words, worst_error

EVERY = (made.passing_cpu, made.passing_cuda, made.wrong_output, made.cheat, made.compile_error)


def shown(evaluation: Evaluation, width: int = 80, **options: Any) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width, **options), document(evaluation))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("make", EVERY)
def test_every_report_fits_its_terminal(make: Any, width: int) -> None:
    text = shown(make(), width)
    evaluation = make()
    # A command, a log and a sanitizer's words are left whole, to be copied.
    whole = {evaluation.environment.command, *words.printable(evaluation.log.text).splitlines()}
    too_long = [line for line in text.splitlines() if len(line) > width and line not in whole]
    assert too_long == []
    assert "…" not in text
    assert text.startswith(evaluation.status)


@pytest.mark.parametrize("make", EVERY)
def test_no_colour_where_there_is_no_terminal_and_no_escape_from_a_candidate(make: Any) -> None:
    assert "\x1b" not in shown(make())
    coloured = shown(make(), force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    assert "\x1b[31m[red]" not in coloured
    assert "\u202e" not in coloured


def test_the_summary_comes_first_and_says_it_all() -> None:
    top = shown(made.passing_cuda(), 160).partition("Trials\n")[0]
    for said in (
        "PASS  gqa_attn",
        "2.692 us a call",
        "95 % interval 2.689 to 2.694 us, graph replay, warm cache",
        "faster than scaled_dot_product_attention, 6.51x",
        "interval 6.41x to 6.60x",
        "1.64 x the yardstick, allowed ",
        "the reference's own error",
        "8 of 8 passed",
        "41 kB beyond inputs and outputs",
        "3 launches a call of 2 kernels",
        "60 % of the launch limit",
        "0 violations, 1 note",
    ):
        assert said in top
    assert len(top.splitlines()) <= 15


def test_a_failed_trial_says_where_and_with_which_values() -> None:
    text = shown(made.wrong_output(), 160)
    assert "FAIL 1  jitter 1 (jitter), seed 1001, seen by: output" in text
    assert "first at [0, 3, 7, 31]: nan, the reference has 0.25" in text
    assert "17 of 40,960" in text
    assert "line 39" in text and "line 3\n" not in text  # the end of the log only


def test_a_failed_trial_says_it_once() -> None:
    """The judge's own words of a wrong output hold the same figures as the line about it."""
    made_up = made.wrong_output()
    wrong = next(trial for trial in made_up.trials if not trial.passed)
    reason = rules.judged(wrong.outputs[1])
    assert "output[1]: 17 of " in reason
    again = dataclasses.replace(wrong, reason=f"the result came late; at its return {reason}")
    trials = tuple(again if trial is wrong else trial for trial in made_up.trials)
    text = shown(dataclasses.replace(made_up, trials=trials), 160)
    failed = " ".join(text[text.index("seen by: output") :].split())
    assert failed.count("the reference has 0.25") == 1
    assert "the result came late; at its return output[1]: 17 of 40960 elements differ" in failed


def test_details_of_a_gpu() -> None:
    text = shown(made.passing_cuda(), 160)
    for said in (
        "short_kernel<float, 32, 4>",
        "long scoreboard 34, barrier 21",
        "HMMA 96",
        "racecheck: 2 errors",
        "not captured: it synchronises",
        "SM 1965-1980 of 1980 MHz",
        "13.1 MFLOP and at least 1.64 MB a call",
        "time of a call, us",
        "for a launch",
    ):
        assert said in text


def test_what_was_not_measured_says_how_to_mend_it() -> None:
    text = shown(made.passing_cpu())
    assert "no ceilings were measured\n" in text.replace("  ", "").replace(" \n", "\n")
    assert "fix: python -m kernels roofline --measure" in text


def test_a_speed_of_a_wrong_program_is_not_praised() -> None:
    tones = {line.text: line.tone for line in summary(document(made.wrong_output())) if line.name == "speed"}
    assert set(tones.values()) == {"plain"}
    tones = {line.text: line.tone for line in summary(document(made.passing_cpu())) if line.name == "speed"}
    assert tones == {
        "faster than reference, 1.59x": "good",
        "same as torch.compile of the reference, 1.01x": "plain",
    }


def test_a_verdict_has_its_words() -> None:
    assert verdict_words({"verdict": "unclear"}) == ("unclear", "against")
    assert verdict_words({"verdict": "same"}) == ("same", "as")
    assert verdict_words({"verdict": "slower"}) == ("slower", "than")


def test_times_of_a_cheat_are_what_it_claims() -> None:
    given = document(dataclasses.replace(made.passing_cpu(), status="CHEAT", reason="clock: it lies"))
    names = [line.name for line in summary(given)]
    assert names[:3] == ["time it claims", "speed it claims", "speed it claims"]
    assert "it claims to be (eager, warm cache)" in page(given)


def test_a_busy_machine_is_said_beside_the_time() -> None:
    passing = made.passing_cpu()
    assert passing.timing is not None
    timing = dataclasses.replace(passing.timing, notes=(f"{BUSY}: in the long batches",))
    first = summary(document(dataclasses.replace(passing, timing=timing)))[0]
    assert (first.tone, first.detail.endswith(f"; {BUSY}")) == ("warn", True)


def test_every_kind_of_row_is_explained_once() -> None:
    rows = [{"name": name, "outside_us": None} for name in ("candidate", "candidate, clock check")]
    told = " ".join(words.timing_terms(rows))
    assert "Clock check:" in told and "Repeated content:" not in told and "From outside" not in told
    assert "New content:" in " ".join(words.timing_terms([{"name": FRESH, "outside_us": 1.0}]))


def test_more_than_the_measured_ceiling_is_marked() -> None:
    passing = made.passing_cuda()
    assert passing.roofline is not None
    above = dataclasses.replace(passing, roofline=dataclasses.replace(passing.roofline, share=1.3))
    line = next(line for line in summary(document(above)) if line.name == "limit")
    assert line.tone == "warn" and "when its ceilings were measured" in line.detail


def test_headline_and_verdicts_are_of_one_kind_where_there_is_one() -> None:
    given = document(made.passing_cuda())
    row = headline(given)
    assert row is not None and (row["mode"], row["cache"]) == ("graph", "warm")
    assert {(one["mode"], one["cache"]) for one in speed_verdicts(given)} == {("graph", "warm")}
    # A baseline that no graph holds is compared by its eager time.
    given["timing"]["verdicts"] = [
        one for one in given["timing"]["verdicts"] if one["name"] != "reference" or one["mode"] == "eager"
    ]
    found = {one["name"]: one["mode"] for one in speed_verdicts(given)}
    assert found["reference"] == "eager" and found["scaled_dot_product_attention"] == "graph"


def test_worst_error_is_over_all_outputs() -> None:
    worst = worst_error(document(made.wrong_output()))
    assert worst is not None
    assert (worst.units, worst.allowed, worst.trial) == (31_000.0, 4.0, "jitter 1")
    assert worst_error(document(made.compile_error())) is None


def test_the_yardstick_is_named_for_what_it_is() -> None:
    """Where an element has a bound of its own, the reference's error is not all that it is measured by."""
    base = made.passing_cuda()
    output = dataclasses.replace(base.trials[0].outputs[0], own_error_units=1.9, bound_at=(1, 2, 3, 4))
    trial = dataclasses.replace(base.trials[0], outputs=(output,))
    other = dataclasses.replace(base, trials=(trial, *base.trials[1:]))
    said = [line for one in (base, other) for line in summary(document(one)) if line.name == "worst error"]
    assert [line.text for line in said] == [
        "1.64 x the yardstick, allowed 4.00",
        "1.90 x the yardstick, allowed 4.00",
    ]
    assert said[0].detail.endswith("the reference's own error")
    assert said[1].detail.endswith("the reference's own error there or what rounding to float32 moves")


def test_of_many_timed_outputs_the_worst_is_told() -> None:
    base = made.passing_cpu()
    timed = [trial for trial in base.trials if trial.kind == "timed"] * 40
    timed[7] = dataclasses.replace(
        timed[7], outputs=(dataclasses.replace(timed[7].outputs[0], own_error_units=1.77),)
    )
    others = [trial for trial in base.trials if trial.kind != "timed"]
    evaluation = dataclasses.replace(base, trials=(*others[:3], *timed, *others[3:]))
    told = told_trials(document(evaluation)["trials"])
    assert [trial["name"] for trial in told[:5]] == [
        *(trial.name for trial in others[:3]),
        "timed, worst of 40",
        others[3].name,
    ]
    assert told[3]["outputs"][0]["own_error_units"] == 1.77
    assert len(told) == len(others) + 1
    # One that failed is told by itself.
    bad = dataclasses.replace(timed[3], passed=False)
    evaluation = dataclasses.replace(base, trials=(*timed, bad))
    assert [trial["passed"] for trial in told_trials(document(evaluation)["trials"])] == [True, False]
    assert "47 of 47 passed" in shown(dataclasses.replace(base, trials=(*others, *timed)))


def test_another_schema_is_refused() -> None:
    given = document(made.passing_cpu())
    with pytest.raises(ValueError, match="schema 7; supported: schema 1"):
        show(Console(file=io.StringIO()), {**given, "schema": 7})
    with pytest.raises(ValueError, match="no schema"):
        show(Console(file=io.StringIO()), {"rows": []})


def test_a_hostile_text_is_written_out() -> None:
    assert words.printable(HOSTILE).endswith("<1b>[31m[red]<202e>&amp;\"'")
    assert words.printable("a\r\nb\tc\r") == "a\nb\tc<0d>"
    assert words.printable("\ud800") == "<d800>"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (4.68e-5, "4.7e-05"),
        (0.0123, "0.012"),
        (2.6918, "2.692"),
        (9.9996, "10.00"),
        (99.996, "100.0"),
        (48210.4, "48,210"),
        (None, "-"),
    ],
)
def test_microseconds(value: float | None, expected: str) -> None:
    assert words.microseconds(value) == expected


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (words.units, "inf", "inf"),
        (words.units, 1.2e6, "1.2e+06"),
        (words.units, 1.3e-3, "1.3e-03"),
        (words.units, 0.0051, "0.01"),
        (words.units, 0.0, "0.00"),
        (words.ratio, 1.066, "1.07x"),
        (words.error, 0.0, "0"),
        (words.share, 0.0031, "0.31 %"),
        (words.size, 0, "0 B"),
        (words.size, 1_638_400, "1.64 MB"),
        (words.kernel_name, "void (anonymous namespace)::a::k<float, 4>(a::P)", "k<float, 4>"),
        (words.kernel_name, "(odd", "(odd"),
        (words.inputs, ["a", "a", "b", "a"], ["2 x a", "b", "a"]),
    ],
)
def test_words(function: Any, value: Any, expected: Any) -> None:
    assert function(value) == expected


def test_many_notes_of_one_rule_are_told_as_a_number() -> None:
    note = Finding("lower-precision", "note", "lint", "uses half: look at the error", path="a.cuh", line=3)
    notes = tuple(dataclasses.replace(note, path=f"{name}.cuh") for name in "abcdefg")
    text = shown(dataclasses.replace(made.passing_cpu(), findings=notes), 160)
    assert text.count("uses half: look at the error") == 3
    assert "lower-precision: 4 more in 4 files; the page and the JSON have them" in text
