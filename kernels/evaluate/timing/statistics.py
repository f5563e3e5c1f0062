"""What a set of timing samples says: the median and its bounds, outliers, and A against B.

Samples of a machine are no independent draws: clocks drift, neighbours come and go,
and one sample resembles the next. Two things follow here. An interval counts how
many independent samples the series is worth (:func:`effective_size`) and not how many there are.
And two calls are compared sample by sample, each with the neighbour that was taken
beside it, so that what both went through cancels.

Everything is a function of the samples alone, with no random draws: the same report
always gives the same verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from kernels.evaluate.evaluation import TimingRow, Verdict

__all__ = [
    "ALIKE",
    "PRACTICAL",
    "PRACTICAL_US",
    "compare",
    "effective_size",
    "median_interval",
    "outliers",
    "summarise",
]

# Two calls that differ by less than the larger of these are the same.
PRACTICAL = 0.01
PRACTICAL_US = 0.1
# An interval that reaches further does not say that they are the same.
ALIKE = 0.1
# A shorter series does not show how much its neighbours resemble each other.
_SHORT_SERIES = 20
# With fewer samples than this no 95 % interval of a median exists ...
_HANDFUL = 6
# ... and all of them may lie this far beside the truth, in the natural logarithm of the ratio.
_HANDFUL_MARGIN = 0.10
# Scales the median absolute deviation to the standard deviation of a normal distribution.
_MAD_SCALE = 1.4826


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Bounds of the median with ``confidence``: order statistics, exact binomial, any distribution.

    ``samples`` in the order taken: a series in which neighbours resemble each other is
    worth fewer samples, and its bounds lie further apart. Where there are too few for
    the confidence (fewer than 6 for 0.95) the bounds are the extremes. Raises
    ``ValueError`` for no samples or a confidence outside (0, 1).
    """
    if not samples:
        raise ValueError("the median of no samples has no interval")
    ordered = sorted(samples)
    count = len(ordered)
    worth = max(1, int(effective_size(samples)))
    rank = _lower_rank(worth, confidence)
    # The rank among `worth` samples, at the same share of all of them.
    low = 0 if worth < 2 else rank * (count - 1) // (worth - 1)
    return ordered[low], ordered[count - 1 - low]


def outliers(samples: Sequence[float]) -> int:
    """How many samples lie further than 3 scaled median absolute deviations from the median."""
    if not samples:
        return 0
    centre = median(samples)
    limit = 3 * _scaled_mad(samples, centre)
    return sum(abs(sample - centre) > limit for sample in samples)


def summarise(
    name: str,
    mode: str,
    cache: str,
    samples_us: Sequence[float],
    calls_per_sample: int,
    outside_us: float | None = None,
    note: str = "",
) -> TimingRow:
    """The row of one call's samples (microseconds a call, in the order taken); no sample is removed.

    Without samples the row has no median, and ``note`` says why. Raises ``ValueError``
    for a sample that is no time.
    """
    bad = [sample for sample in samples_us if not (math.isfinite(sample) and sample > 0)]
    if bad:
        raise ValueError(f"{name}, {mode}, {cache}: {bad[0]} is no time; samples are positive microseconds")
    if not samples_us:
        return TimingRow(
            name, mode, cache, calls_per_sample=calls_per_sample, outside_us=outside_us, note=note
        )
    low, high = median_interval(samples_us)
    return TimingRow(
        name=name,
        mode=mode,
        cache=cache,
        samples_us=tuple(samples_us),
        calls_per_sample=calls_per_sample,
        median_us=median(samples_us),
        low_us=low,
        high_us=high,
        outliers=outliers(samples_us),
        outside_us=outside_us,
        note=note,
    )


def compare(candidate: TimingRow, other: TimingRow) -> Verdict:
    """Is the candidate faster than ``other``, the same, or slower; or is it unclear.

    Sample ``i`` of one is divided by sample ``i`` of the other: take them in turns.
    ``speedup`` is the median of these ratios, bounded by the 95 % interval of
    :func:`median_interval`. "faster" and "slower" need the whole interval beyond
    1 % (:data:`PRACTICAL`) and beyond 0.1 us of the shorter median (:data:`PRACTICAL_US`), "same" needs it
    within 10 % (:data:`ALIKE`) or that; everything else is "unclear". Fewer than 20 pairs say too little
    of how they depend on each other: their interval is the range of the ratios, widened
    by a tenth on both sides when there are fewer than 6. Noise that stays the same for
    longer than the whole series cannot be told from a difference by any test.
    Raises ``ValueError`` when a row has no samples, or the rows are of different modes.
    """
    for row in (candidate, other):
        if not row.samples_us:
            raise ValueError(f"{row.name}, {row.mode}, {row.cache}: no samples to compare")
    if (candidate.mode, candidate.cache) != (other.mode, other.cache):
        raise ValueError(
            f"{candidate.mode}, {candidate.cache} L2 is not comparable with {other.mode}, {other.cache} L2"
        )
    ratios = [
        math.log(theirs / ours) for ours, theirs in zip(candidate.samples_us, other.samples_us, strict=False)
    ]
    if len(ratios) < _SHORT_SERIES:
        margin = _HANDFUL_MARGIN if len(ratios) < _HANDFUL else 0.0
        low, high = min(ratios) - margin, max(ratios) + margin
    else:
        low, high = median_interval(ratios)
    shorter_us = min(median(row.samples_us) for row in (candidate, other))
    threshold = math.log1p(max(PRACTICAL, PRACTICAL_US / shorter_us))
    alike = max(threshold, math.log1p(ALIKE))
    if low > threshold:
        verdict = "faster"
    elif high < -threshold:
        verdict = "slower"
    else:
        verdict = "same" if low >= -alike and high <= alike else "unclear"
    return Verdict(
        name=other.name,
        mode=candidate.mode,
        cache=candidate.cache,
        verdict=verdict,
        speedup=math.exp(median(ratios)),
        low=math.exp(low),
        high=math.exp(high),
    )


def effective_size(samples: Sequence[float]) -> float:
    """How many independent samples a series is worth: between 1 and its length.

    The length divided by the integrated autocorrelation time, for which the larger of
    two estimates is taken: from the first lag, corrected for its bias in short series,
    which is right for noise with a short memory; and from the sum over lags while pairs of them
    are positive, which sees slow drift under fast noise. Outliers count as 3 deviations.
    """
    count = len(samples)
    centre = median(samples)
    limit = 3 * _scaled_mad(samples, centre)
    if count < 4 or limit == 0:
        return float(count)
    clipped = [min(max(sample - centre, -limit), limit) for sample in samples]
    mean = math.fsum(clipped) / count
    series = [value - mean for value in clipped]
    variance = math.fsum(value * value for value in series)
    if variance == 0:
        return float(count)

    def correlation(lag: int) -> float:
        return math.fsum(map(_product, series, series[lag:])) / variance

    first = correlation(1)
    unbiased = min(first + (1 + 3 * first) / count, 1 - 1 / count)
    by_memory = (1 + unbiased) / (1 - unbiased)
    by_sum, lag = -1.0, 0
    while lag + 1 < count // 2:
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0:
            break
        by_sum += 2 * pair
        lag += 2
    return max(1.0, count / max(1.0, by_memory, by_sum))


def _product(left: float, right: float) -> float:
    return left * right


def _scaled_mad(samples: Sequence[float], centre: float) -> float:
    return _MAD_SCALE * median(abs(sample - centre) for sample in samples)


def _lower_rank(count: int, confidence: float) -> int:
    """The largest rank (from 0) whose order statistic and its mirror hold the median with ``confidence``."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not between 0 and 1")
    # A rank misses when at most `rank` samples fall on one side: a binomial tail, in whole numbers.
    allowed = round((1 - confidence) / 2 * 10**12) << count
    tail, term, rank = 1, 1, 0
    while rank + 1 < (count + 1) // 2:
        term = term * (count - rank) // (rank + 1)
        tail += term
        if tail * 10**12 > allowed:
            break
        rank += 1
    return rank
