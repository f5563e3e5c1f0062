"""What nearly all elements of an output are held to where a few are far off in the reference itself."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.evaluate.bulk import allowed_beyond, bulk_of, scale_of
from kernels.evaluate.evaluation import FRESH, REPEATED, TimingRow
from kernels.evaluate.grading import Known, bounds_of, output_error
from kernels.evaluate.outputs import leaves_of, structure_difference
from kernels.evaluate.rules import judged, repeat_finding
from kernels.evaluate.telling import words_on

EPS = torch.finfo(torch.float32).eps


def judge(got: torch.Tensor, expected: torch.Tensor, oracle: torch.Tensor, known: Known | None = None) -> str:
    return judged(output_error("", got, expected, oracle, bounds_of(expected.dtype, None), known=known))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rounded(oracle: torch.Tensor, seed: int, units: float = 1.0) -> torch.Tensor:
    """What a float32 program might return: off by some ``units`` of precision of the usual size."""
    return (oracle + units * EPS * normal(*oracle.shape, seed=seed)).float()


def test_the_bulk_of_a_normal_distribution_is_all_of_it() -> None:
    oracle = normal(300, 400)
    expected = rounded(oracle, 1)
    bulk = bulk_of(expected, oracle)
    assert bulk.own_error == (expected - oracle).abs().max()
    assert bulk.scale == oracle.abs().max()
    assert (bulk.beyond, bulk.lone) == (0, False)


@pytest.mark.parametrize("far", [math.inf, 1e30, -1e9], ids=["overflow", "huge error", "mask"])
def test_a_few_far_elements_excuse_no_others(far: float) -> None:
    oracle = normal(200, 200)
    expected = rounded(oracle, 1)
    oracle[:, ::3] = far if far < 0 else 1e35
    expected[:, ::3] = far
    honest = torch.where(expected == far, expected, rounded(oracle, 2))
    assert judge(honest, expected, oracle) == ""
    # As where float32 does not overflow in another order of operations.
    assert judge(torch.where(expected == far, oracle.float(), honest), expected, oracle) == ""
    zeros = torch.where(expected == far, expected, 0.0)
    assert "further from float64 than nearly all" in judge(zeros, expected, oracle)


def test_about_as_many_elements_may_fall_on_the_other_side_as_the_references() -> None:
    oracle = (normal(400, 400) * 10).round()
    expected, honest, short = oracle.float(), oracle.float(), oracle.float()
    expected.view(-1)[:50] += 1
    honest.view(-1)[1000:1300] += 1
    short.view(-1)[1000:9000] += 1
    assert judge(honest, expected, oracle) == ""
    assert judge(short, expected, oracle).startswith("the output: 8000 of 160000 elements")


def test_a_heavy_tail_excuses_nothing_in_the_middle() -> None:
    oracle = normal(400, 400) / normal(400, 400, seed=1)
    expected = (oracle * (1 + EPS * normal(400, 400, seed=2))).float()
    honest = (oracle * (1 + 3 * EPS * normal(400, 400, seed=3))).float()
    assert judge(honest, expected, oracle) == ""
    tail = torch.where(oracle.abs() > 30, honest, 0.0)
    assert judge(tail, expected, oracle)


@pytest.mark.parametrize("total", [1, 3, 50])
def test_of_a_few_elements_each_has_the_bound_of_the_whole(total: int) -> None:
    oracle = normal(total)
    expected = rounded(oracle, 1)
    assert judge(rounded(oracle, 2), expected, oracle) == ""
    assert judge(oracle.float() + 1e-3, expected, oracle)


def test_how_many_may_be_beyond_is_never_more_than_a_few_of_a_hundred() -> None:
    oracle = normal(100, 100)
    expected = rounded(oracle, 1)
    few, most = bulk_of(expected, oracle), bulk_of(expected + 1e-3 * (normal(100, 100) > 2.6), oracle)
    assert allowed_beyond(few, 10_000) == 8
    assert allowed_beyond(most, 10_000) <= 208


def test_timed_calls_are_held_to_their_own_size_where_that_is_larger() -> None:
    oracle = normal(100, 100)
    expected = rounded(oracle, 1)
    error = output_error("", expected, expected, oracle, bounds_of(torch.float32, None))
    assert error.reference_error is not None and error.allowed_error is not None
    known = Known(error.reference_error, error.allowed_error, bulk_of(expected, oracle))
    large = 300 * normal(100, 100, seed=4)
    honest = (large + 300 * 16 * EPS * normal(100, 100, seed=5)).float()
    assert judge(honest, large.float(), large, known) == ""
    assert judge(honest + 0.3, large.float(), large, known)


def test_without_float64_the_tolerance_follows_the_size_of_nearly_all_elements() -> None:
    small = 1e-3 * normal(50, 50).float()
    bounds = bounds_of(torch.float32, None)
    assert judged(output_error("", small + 5e-6, small, None, bounds))
    large = 1e4 * normal(50, 50).float()
    assert judged(output_error("", large + 16 * EPS * 1e4, large, None, bounds)) == ""
    assert scale_of(torch.cat([normal(999), torch.full((1,), 1e9)])) < 1e3


def test_dicts_are_equal_in_whatever_order_they_were_made() -> None:
    one, two = torch.zeros(2), torch.zeros(3)
    assert structure_difference({"a": one, "b": two}, {"b": two, "a": one}, {}, "cpu") == ""
    assert [path for path, _ in leaves_of({"b": two, "a": one})] == ["['a']", "['b']"]


def test_a_number_is_held_to_what_float32_knows() -> None:
    ((_, got),), ((_, expected),) = leaves_of(2.00171947), leaves_of(2.00171971)
    assert judged(output_error("", got, expected, None, bounds_of(expected.dtype, None))) == ""


@pytest.mark.parametrize(
    ("longer", "rounds", "is_cheat"),
    [(3, 3, True), (8, 10, False), (9, 10, True), (9, 11, False), (10, 11, True), (16, 21, True)],
)
def test_few_rounds_of_a_busy_machine_prove_no_memory(longer: int, rounds: int, is_cheat: bool) -> None:
    seen = TimingRow(REPEATED, "eager", "warm", samples_us=(10.0,) * rounds)
    new = TimingRow(FRESH, "eager", "warm", samples_us=(40.0,) * longer + (5.0,) * (rounds - longer))
    rows = {REPEATED: seen, FRESH: new}
    assert (repeat_finding(rows) is not None) == is_cheat
    assert repeat_finding(rows, suspected=True) is not None


def test_outputs_that_tell_little_are_noted() -> None:
    oracle = normal(40, 50)
    noise = 1e-9 * normal(40, 50, seed=1).float()
    late = torch.where(torch.arange(50) < 40, oracle.float(), 0.0)

    def words(got: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> str:
        return words_on(
            got, expected, exact, output_error("", got, expected, exact, bounds_of(got.dtype, None))
        )

    assert words(oracle.float(), oracle.float(), oracle) == ""
    assert words(late, oracle.float(), oracle).startswith("400 of 2000 elements")
    assert "rounding alone" in words(noise, noise, 1e-17 * oracle)
    assert words(torch.ones(4), torch.ones(4), torch.ones(4).double()).endswith("is 1.0")
    nothing = torch.full((4,), math.nan)
    assert "no finite element" in words(nothing, nothing, nothing.double())
