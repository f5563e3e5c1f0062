"""The rules that follow from samples and figures alone, so that a report can be checked against them.

Nothing here needs torch: the judge applies these functions to what it measured, and
``python -m kernels verify`` to what a report says was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from kernels.evaluate.evaluation import (
    CANDIDATE,
    CHECKS,
    CLOCK,
    FRESH,
    OFTEN,
    REPEATED,
    ClockBatch,
    Finding,
    OutputError,
    TimingRow,
)

__all__ = [
    "CANDIDATE",
    "CHECKS",
    "CLOCK",
    "CLOCK_RULE",
    "FLOOR",
    "FRESH",
    "OFTEN",
    "REPEAT",
    "REPEATED",
    "clock_finding",
    "floor_finding",
    "graph_clock_finding",
    "judged",
    "ratio_of",
    "repeat_finding",
    "round_trip_note",
    "round_trip_of",
    "waiting_share",
]

# Names of rules.
CLOCK_RULE, REPEAT, FLOOR = "clock", "repeat", "floor"

_HONEST_SHARE = 0.9
_SHORT_SHARE = 0.6
_REPEAT_RATIO = 1.5
_REPEAT_SHARE = 0.75
# How often chance may say so where one is as often slower as the other: 16 of 21 rounds, 9 of 10.
_REPEAT_CHANCE = 0.015
_SEEN = {REPEATED: "before", OFTEN: "often"}
_WAIT_US = 1000.0
_REPLAY_ALLOWANCE_US = 200.0
_REPLAY_ALLOWANCE_SHARE = 0.25
_TRIP = "round trip of a request, us: "


def ratio_of(fresh: TimingRow, repeated: TimingRow) -> float | None:
    """The median on fresh content over that on repeated content, of the rounds that took both."""
    count = min(len(fresh.samples_us), len(repeated.samples_us))
    if not count:
        return None
    return median(fresh.samples_us[:count]) / median(repeated.samples_us[:count])


def repeat_finding(rows: Mapping[str, TimingRow], *, suspected: bool = False) -> Finding | None:
    """Rule "repeat": content seen before costs less than two thirds of content never seen.

    In the median, and in three of four rounds, each of which took both on the same content; in more where
    there are few rounds, in which a busy machine may say so, unless it is only ``suspected``. Seen once
    before, or as often as the batches of a round call on it.
    """
    fresh = rows.get(FRESH) or rows.get(CANDIDATE)
    found = (_repeat(fresh, rows.get(name), words, suspected) for name, words in _SEEN.items())
    return next(filter(None, found), None)


def _repeat(
    fresh: TimingRow | None, repeated: TimingRow | None, words: str, suspected: bool
) -> Finding | None:
    if fresh is None or repeated is None or not repeated.samples_us:
        return None
    pairs = list(zip(fresh.samples_us, repeated.samples_us, strict=False))
    longer = sum(new > _REPEAT_RATIO * seen for new, seen in pairs)
    share = longer / len(pairs)
    ratio = ratio_of(fresh, repeated) or 1.0
    if ratio <= _REPEAT_RATIO or share < _REPEAT_SHARE:
        return None
    if not suspected and longer < len(pairs) and _by_chance(longer, len(pairs)) > _REPEAT_CHANCE:
        return None
    return Finding(
        REPEAT,
        "violation",
        "repeat",
        f"content it has seen {words} takes {median(repeated.samples_us):.3g} us, "
        f"new content {ratio:.2f} times as long",
        evidence={"ratio": ratio, "rounds": len(pairs), "share_of_rounds": share},
    )


def _by_chance(count: int, total: int) -> float:
    """How likely at least ``count`` of ``total`` throws of a coin show the same side."""
    return sum(math.comb(total, number) for number in range(count, total + 1)) / 2**total


def clock_finding(
    short_us: float | None, batches: Sequence[ClockBatch], calls: int, round_trip_us: float, processors: int
) -> Finding | None:
    """Rule "clock": its own account of the time is shorter than the judge's clock saw.

    ``batches`` of ``calls`` are so long that the round trip hardly shows. Short samples, whose median
    is ``short_us``, are held to the least that long ones took: content that is new cannot take half of
    it. What a busy machine can have added is no evidence: where the two clocks agree but for that, a
    note says so.
    """
    if not batches or short_us is None:
        return None
    # More round trips, and a wait for the processor, spread over the calls of the batch.
    allowance = (3 * round_trip_us + _WAIT_US) / calls
    proven = [_proven_us(batch, processors) for batch in batches]
    seen = [batch.outside_us for batch in batches]
    for times, severity in ((proven, "violation"), (seen, "note")):
        inside, outside = max(
            ((batch.inside_us, time) for batch, time in zip(batches, times, strict=True)),
            key=lambda pair: pair[0] - _HONEST_SHARE * pair[1],
        )
        evidence = {"inside_us": inside, "outside_us": outside, "allowance_us": allowance}
        if inside < _HONEST_SHARE * outside - allowance:
            message = f"{inside:.3g} us a call by its own clock, {outside:.3g} us by the judge's"
        elif short_us < _SHORT_SHARE * min(times):
            evidence = {"inside_us": short_us, "outside_us": min(times), "allowance_us": 0.0}
            message = (
                f"{short_us:.3g} us a call on new content by its own clock, "
                f"{min(times):.3g} us in long batches by the judge's"
            )
        else:
            continue
        if severity == "note":
            message += f"; {_excuse(batches)}"
        return Finding(CLOCK_RULE, severity, "clock", message, evidence=evidence)
    return None


def waiting_share(batches: Sequence[ClockBatch]) -> float:
    """How much of the time in which threads could run in the long batches they waited for a processor."""
    waited = sum(batch.waited_us or 0.0 for batch in batches)
    ready = waited + sum(batch.cpu_us for batch in batches)
    return waited / ready if ready > 0 else 0.0


def _proven_us(batch: ClockBatch, processors: int) -> float:
    """What of the judge's time the load of the machine cannot have caused."""
    if batch.waited_us is not None:
        return batch.outside_us - batch.waited_us
    # Side by side at best, and all but one of them may have spun until that one came to run.
    return batch.cpu_us / processors**2


def _excuse(batches: Sequence[ClockBatch]) -> str:
    if all(batch.waited_us is None for batch in batches):
        return "what it waited for a processor is not told here, so it is not held against it"
    share = 100 * waiting_share(batches)
    return f"threads that could run waited for a processor {share:.0f} % of the time, which can be all of it"


def judged(error: OutputError) -> str:
    """Why an output with these figures is wrong; empty when it is right. Decides from the figures alone."""
    where = f"output{error.path}" if error.path else "the output"
    if error.mismatched and (error.got is None or error.expected is None):
        return f"{where}: {error.mismatched} of {error.total} elements are wrong"
    if error.mismatched:
        return (
            f"{where}: {error.mismatched} of {error.total} elements differ by more than "
            f"{error.atol:g} + {error.rtol:g}*|reference|; the first at {error.first_bad}: "
            f"{error.got:.9g}, the reference has {error.expected:.9g}; the largest difference is "
            f"{error.max_abs:.3g}"
        )
    if error.oracle_error is not None and not error.oracle_error <= (error.allowed_error or 0.0):
        if error.bound_at is not None:
            return (
                f"{where}: at {error.bound_at} the error against float64 is {error.oracle_error:.3g}; the "
                f"reference's there, or what rounding to float32 moves, is {error.reference_error:.3g}, "
                f"which allows {error.allowed_error:.3g}"
            )
        return (
            f"{where}: the largest error against float64 is {error.oracle_error:.3g}; the reference's is "
            f"{error.reference_error:.3g}, which allows {error.allowed_error:.3g}"
        )
    if error.beyond is not None and error.beyond > (error.beyond_allowed or 0):
        return (
            f"{where}: {error.beyond} of {error.total} elements are further from float64 than nearly all of "
            f"the reference's allow ({error.bulk_error:.3g} near 0); {error.beyond_allowed} may be, since a "
            f"few of the reference's are; the largest error is {error.oracle_error:.3g}"
        )
    return ""


def floor_finding(time_us: float, floor_us: float) -> Finding | None:
    """Rule "floor": faster than any program that reads the inputs and does the work can be."""
    if time_us >= floor_us:
        return None
    return Finding(
        FLOOR,
        "violation",
        "floor",
        f"{time_us:.3g} us is below the physical floor of {floor_us:.3g} us",
        evidence={"time_us": time_us, "floor_us": floor_us},
    )


def round_trip_note(round_trip_us: float) -> str:
    """The note of the clock row that carries the round trip."""
    return f"{_TRIP}{round_trip_us!r}"


def round_trip_of(row: TimingRow) -> float:
    """What :func:`round_trip_note` wrote. Raises ``ValueError``."""
    return float(row.note.removeprefix(_TRIP))


def graph_clock_finding(row: TimingRow, outside_us: float) -> Finding | None:
    """Rule "clock" for graph replays: ``outside_us`` is what one more sample costs by the judge's clock."""
    if row.median_us is None:
        return None
    inside = row.median_us * row.calls_per_sample
    # The wait and the delay of each replay are outside its two events.
    allowance = _REPLAY_ALLOWANCE_US + _REPLAY_ALLOWANCE_SHARE * inside
    if inside >= _HONEST_SHARE * outside_us - allowance:
        return None
    return Finding(
        "graph-clock",
        "violation",
        "clock",
        f"{row.name}: a replay takes {inside:.3g} us by its own clock, {outside_us:.3g} us by the judge's",
        evidence={"inside_us": inside, "outside_us": outside_us, "allowance_us": allowance},
    )
