"""Do intervals hold the truth as often as they say, and does A against A stay "same"."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from kernels.evaluate.evaluation import TimingRow
from kernels.evaluate.timing.statistics import compare, effective_size, median_interval, outliers, summarise

Noise = Callable[[random.Random, int], list[float]]


def _row(name: str, samples: list[float]) -> TimingRow:
    return summarise(name, "graph", "warm", samples, 1)


def _correlated(rng: random.Random, count: int, rho: float, sigma: float) -> list[float]:
    """AR(1) of the given standard deviation."""
    value, found = rng.gauss(0, sigma), []
    for _ in range(count):
        value = rho * value + rng.gauss(0, sigma * math.sqrt(1 - rho * rho))
        found.append(value)
    return found


# -- the interval of a median ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "rank"),  # from tables of the sign test at 5 %, two-sided; ranks from 0
    [(6, 0), (8, 0), (9, 1), (10, 1), (20, 5), (25, 7), (50, 17), (100, 39)],
)
def test_ranks_are_those_of_the_sign_test(count: int, rank: int) -> None:
    # Neighbours on opposite sides of the middle: no series is less like its neighbours.
    samples = [float(i // 2 if i % 2 else count - 1 - i // 2) for i in range(count)]
    assert effective_size(samples) == count
    assert median_interval(samples) == (float(rank), float(count - 1 - rank))


def test_few_samples_have_their_extremes() -> None:
    assert median_interval([3.0]) == (3.0, 3.0)
    assert median_interval([5.0, 1.0, 3.0]) == (1.0, 5.0)
    assert median_interval([2.0, 2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_more_confidence_is_a_wider_interval() -> None:
    rng = random.Random(1)
    samples = [rng.gauss(100, 1) for _ in range(101)]
    bounds = [median_interval(samples, level) for level in (0.5, 0.95, 0.999)]
    assert bounds[2][0] < bounds[1][0] < bounds[0][0] < bounds[0][1] < bounds[1][1] < bounds[2][1]


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5])
def test_a_confidence_is_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        median_interval([1.0, 2.0], confidence)


def test_no_samples_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize(("rho", "at_least"), [(0.0, 0.94), (0.5, 0.92), (0.8, 0.90)])
def test_the_interval_holds_the_median_as_often_as_it_says(rho: float, at_least: float) -> None:
    rng, held, runs = random.Random(7), 0, 500
    for _ in range(runs):
        low, high = median_interval([100 + noise for noise in _correlated(rng, 80, rho, 1.0)])
        held += low <= 100 <= high
    assert held / runs >= at_least


def test_a_series_that_repeats_itself_is_worth_fewer_samples() -> None:
    rng = random.Random(3)
    independent = [rng.gauss(0, 1) for _ in range(400)]
    sticky = _correlated(rng, 400, 0.9, 1.0)  # worth 400 * 0.1 / 1.9 = 21
    assert effective_size(independent) > 200
    assert 8 < effective_size(sticky) < 50
    slow = [math.sin(i / 60) + 2 * rng.gauss(0, 1) for i in range(400)]  # the first lag hardly sees it
    assert effective_size(slow) < 60


# -- rows -----------------------------------------------------------------------------------


def test_a_row_keeps_every_sample_in_order() -> None:
    samples = [5.0, 4.0, 6.0, 5.5, 4.5, 5.1, 4.9, 50.0]
    row = summarise("candidate", "eager", "cold", samples, 7, 5.2, "a note")
    assert row.samples_us == tuple(samples)
    assert row.median_us == 5.05
    assert (row.low_us, row.high_us) == median_interval(samples)
    assert (row.outliers, row.calls_per_sample, row.outside_us, row.note) == (1, 7, 5.2, "a note")


def test_a_row_without_samples_says_why_and_has_no_median() -> None:
    row = summarise("candidate", "graph", "warm", [], 1, note="no graph: it synchronises")
    assert (row.median_us, row.low_us, row.samples_us, row.note) == (
        None,
        None,
        (),
        "no graph: it synchronises",
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive microseconds"):
        summarise("candidate", "graph", "warm", [1.0, bad], 1)


def test_outliers_are_counted_by_their_distance_from_the_median() -> None:
    samples = [10.0, 10.1, 9.9, 10.2, 9.8, 10.0, 10.1, 9.9, 14.0, 5.0]
    assert outliers(samples) == 2
    assert outliers([1.0, 1.0, 1.0]) == 0
    assert outliers([]) == 0


# -- A against B ----------------------------------------------------------------------------


def _independent(rng: random.Random, count: int) -> list[float]:
    return [rng.gauss(0, 0.02) for _ in range(count)]


def _quantised(rng: random.Random, count: int) -> list[float]:
    return [round(rng.gauss(0, 0.01) / 0.0064) * 0.0064 for _ in range(count)]


def _spiked(rng: random.Random, count: int) -> list[float]:
    return [rng.gauss(0, 0.01) + (rng.expovariate(1.0) if rng.random() < 0.1 else 0) for _ in range(count)]


def _two_levels(rng: random.Random, count: int) -> list[float]:
    return [rng.gauss(0, 0.005) + (0.1 if rng.random() < 0.5 else 0) for _ in range(count)]


NOISES: dict[str, Noise] = {
    "independent, 2 %": _independent,
    "AR(1) 0.5, 2 %": lambda rng, n: _correlated(rng, n, 0.5, 0.02),
    "AR(1) 0.8, 3 %": lambda rng, n: _correlated(rng, n, 0.8, 0.03),
    "AR(1) 0.95, 5 %": lambda rng, n: _correlated(rng, n, 0.95, 0.05),
    "one in ten a spike": _spiked,
    "two levels": _two_levels,
    "a coarse clock": _quantised,
}


def _pair(rng: random.Random, noise: Noise, count: int, effect: float) -> tuple[TimingRow, TimingRow]:
    """Two rows taken in turns: common drift of 10 % and a common step, noise of each one's own."""
    ours, theirs = noise(rng, count), noise(rng, count)
    step = rng.randrange(count)
    common = [50.0 * (1 + 0.1 * i / count + (0.08 if i >= step else 0)) for i in range(count)]
    return (
        _row("candidate", [c * math.exp(n) for c, n in zip(common, ours, strict=True)]),
        _row("other", [c * math.exp(n + effect) for c, n in zip(common, theirs, strict=True)]),
    )


# What stays the same over a whole series looks like a difference to anyone.
LEAST_PAIRS = {"AR(1) 0.8, 3 %": 20, "AR(1) 0.95, 5 %": 60}


@pytest.mark.parametrize(
    ("noise", "count"),
    [(name, n) for name in NOISES for n in (12, 20, 60, 200) if n >= LEAST_PAIRS.get(name, 0)],
)
def test_a_kernel_against_itself_is_called_different_in_at_most_5_percent(noise: str, count: int) -> None:
    rng, runs = random.Random(f"{noise} {count}"), 100
    found = [compare(*_pair(rng, NOISES[noise], count, 0.0)).verdict for _ in range(runs)]
    different = sum(verdict in ("faster", "slower") for verdict in found)
    assert different <= 5


@pytest.mark.parametrize("effect", [0.03, -0.03])
def test_three_percent_is_seen_in_60_samples_of_1_percent_noise(effect: float) -> None:
    rng, runs = random.Random(11), 100
    expected = "faster" if effect > 0 else "slower"
    found = [
        compare(*_pair(rng, lambda r, n: [r.gauss(0, 0.01) for _ in range(n)], 60, effect))
        for _ in range(runs)
    ]
    assert sum(verdict.verdict == expected for verdict in found) >= 97
    assert all(verdict.low <= verdict.speedup <= verdict.high for verdict in found)
    assert sum(verdict.low <= math.exp(effect) <= verdict.high for verdict in found) >= 93


def test_a_difference_below_one_percent_is_none_however_sure() -> None:
    ours = [100 + 0.01 * math.sin(3.0 * i) for i in range(300)]
    same = compare(_row("candidate", ours), _row("other", [1.005 * x for x in ours]))
    faster = compare(_row("candidate", ours), _row("other", [1.02 * x for x in ours]))
    assert same.verdict == "same" and same.low > 1
    assert faster.verdict == "faster" and faster.speedup == pytest.approx(1.02)


def test_a_short_call_needs_a_tenth_of_a_microsecond() -> None:
    noise = [1 + 0.0002 * (i % 5 - 2) for i in range(33)]
    cases = ((5.3, 0.06, False), (5.3, 0.2, True), (50.0, 0.3, False), (50.0, 0.8, True))
    for us, gap_us, differs in cases:
        ours, theirs = [us * x for x in noise], [(us + gap_us) * x for x in noise]
        verdicts = [
            compare(_row("candidate", one), _row("other", other)).verdict
            for one, other in ((ours, theirs), (theirs, ours))
        ]
        assert verdicts == (["faster", "slower"] if differs else ["same", "same"])


def test_a_ratio_that_could_be_anything_is_not_called_the_same() -> None:
    ours = [100 + 0.01 * math.sin(3.0 * i) for i in range(30)]
    theirs = [x * (2.0 if i < 15 else 0.4) for i, x in enumerate(ours)]
    unclear = compare(_row("candidate", ours), _row("other", theirs))
    assert unclear.verdict == "unclear" and unclear.low < 0.5 and unclear.high > 1.5


def test_a_handful_of_pairs_decides_only_what_is_plain() -> None:
    ours = _row("candidate", [10.0])
    assert compare(ours, _row("other", [10.9])).verdict == "unclear"
    assert compare(ours, _row("other", [30.0])).verdict == "faster"
    assert compare(ours, _row("other", [5.0])).verdict == "slower"
    assert compare(_row("c", [10, 11, 9]), _row("o", [12, 9, 14])).verdict == "unclear"


def test_what_cannot_be_compared_is_refused() -> None:
    graph, eager = _row("candidate", [1.0]), summarise("other", "eager", "warm", [1.0], 1)
    with pytest.raises(ValueError, match="not comparable"):
        compare(graph, eager)
    with pytest.raises(ValueError, match="no samples"):
        compare(graph, summarise("other", "graph", "warm", [], 1))


def test_a_verdict_carries_the_name_and_mode_it_is_about() -> None:
    verdict = compare(_row("candidate", [1.0] * 20), _row("torch.compile", [2.0] * 20))
    assert (verdict.name, verdict.mode, verdict.cache) == ("torch.compile", "graph", "warm")
    assert (verdict.verdict, verdict.low, verdict.speedup, verdict.high) == (
        "faster",
        pytest.approx(2),
        pytest.approx(2),
        pytest.approx(2),
    )
