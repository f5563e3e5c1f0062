"""Several reports side by side, and when one may be called faster than another."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
import report_documents as made
from report_documents import document
from rich.console import Console

from kernels.evaluate.evaluation import Evaluation, Source
from kernels.report.compare import RUN_TO_RUN, differences, page, show, versus


def scaled(evaluation: Evaluation, factor: float) -> Evaluation:
    """The same evaluation with every time of the candidate multiplied."""
    timing = evaluation.timing
    assert timing is not None
    rows = []
    for row in timing.rows:
        if row.name == "candidate" and row.median_us and row.low_us and row.high_us:
            row = dataclasses.replace(
                row,
                samples_us=tuple(factor * value for value in row.samples_us),
                median_us=factor * row.median_us,
                low_us=factor * row.low_us,
                high_us=factor * row.high_us,
            )
        rows.append(row)
    return dataclasses.replace(evaluation, timing=dataclasses.replace(timing, rows=tuple(rows)))


def shown(evaluations: list[Evaluation], width: int = 80) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width), [document(one) for one in evaluations])
    return file.getvalue()


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.0, "same"),
        (1 - RUN_TO_RUN / 2, "same"),  # the intervals are apart, but by less than two runs may be
        (1 - 3 * RUN_TO_RUN, "faster"),
        (1 + 3 * RUN_TO_RUN, "slower"),
    ],
)
def test_a_verdict_needs_more_than_two_runs_differ_by(factor: float, verdict: str) -> None:
    base = made.passing_cuda()
    found = versus(document(scaled(base, factor)), document(base))
    assert (found.verdict, found.why) == (verdict, "")
    assert found.ratio == pytest.approx(1 / factor)


def test_intervals_that_touch_are_the_same_however_far_the_medians_are() -> None:
    base, other = document(made.passing_cuda()), document(scaled(made.passing_cuda(), 0.5))
    for row in other["timing"]["rows"]:
        row["high_us"] = 1e9
    assert versus(other, base).verdict == "same"


def _other_device(one: Evaluation) -> Evaluation:
    return dataclasses.replace(one, environment=dataclasses.replace(one.environment, device="NVIDIA B200"))


def _other_reference(one: Evaluation) -> Evaluation:
    return dataclasses.replace(
        one, subject=dataclasses.replace(one.subject, reference=(Source("r.py", "77", ""),))
    )


def _other_inputs(one: Evaluation) -> Evaluation:
    assert one.timing is not None
    return dataclasses.replace(one, timing=dataclasses.replace(one.timing, inputs=("float32[3]",)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_other_device, "measured on different devices: NVIDIA B200 and NVIDIA H200"),
        (_other_reference, "judged against different references"),
        (_other_inputs, "timed on different inputs"),
        (lambda one: dataclasses.replace(one, status="TIMEOUT"), "gqa_attn did not pass: TIMEOUT"),
        (lambda one: dataclasses.replace(one, timing=None), "one of them was not timed"),
    ],
)
def test_no_verdict_where_none_can_be_given(change: Any, why: str) -> None:
    base = made.passing_cuda()
    changed = change(scaled(base, 0.1))
    found = versus(document(changed), document(base))
    assert (found.verdict, found.ratio, found.why) == ("", None, why)
    text = shown([base, changed], 160)
    assert f"B and A are not compared: {why}" in text
    assert "10.0x" not in text


def test_times_are_shown_in_the_kind_that_they_are_compared_in() -> None:
    base = made.passing_cuda()
    assert base.timing is not None
    eager = tuple(row for row in base.timing.rows if row.mode == "eager")
    without_graph = dataclasses.replace(base, timing=dataclasses.replace(base.timing, rows=eager))
    text = shown([base, scaled(without_graph, 0.5), made.passing_cpu()], 160)
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("B ")][0].split()[-1] == "faster"
    # A's graph replay is not set beside B's eager time.
    assert "7.421" in text and "3.71" in text and "2.692" not in text
    assert text.count("eager, warm cache") == 3


def test_differences_are_pointed_out() -> None:
    base = made.passing_cuda()
    assert differences([document(base), document(scaled(base, 2.0))]) == {}
    assert "nothing: device, versions" in shown([base, base])
    other = dataclasses.replace(base, seed=43, options={"trials": 9, "timeout_s": 120})
    assert differences([document(base), document(other)]) == {
        "seed": ["42", "43"],
        "option trials": ["5", "9"],
    }


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits(width: int) -> None:
    makes = (made.passing_cuda, made.passing_cpu, made.wrong_output, made.cheat, made.compile_error)
    text = shown([make() for make in makes], width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


def test_one_report_alone_has_nothing_beside_it() -> None:
    text = shown([made.passing_cpu()])
    assert "than A" not in text and "What differs" not in text


def test_nothing_to_compare() -> None:
    for function in (page, lambda documents: show(Console(file=io.StringIO()), documents)):
        with pytest.raises(ValueError, match="no reports were given"):
            function([])


def test_the_page_shows_only_what_can_be_compared_on_one_axis() -> None:
    base = made.passing_cuda()
    text = page([document(base), document(scaled(base, 0.5)), document(made.passing_cpu())])
    assert text.count('class="dots"') == 2
    assert "C and A are not compared: measured on different devices" in text
