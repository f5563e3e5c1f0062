"""Timing in rounds: candidate and baselines take turns, each in its own process, the others stopped.

In every round the reference's worker draws content that nobody has seen, one set of inputs
for each call of a sample. The candidate is timed on it, its outputs are fetched and
checked, and it is timed once more after the same content was written again: that is what
repeated content costs, under otherwise equal conditions. Then each baseline is timed on
the same content, which its worker reads, puts in place and keeps the results of in the same
way. The order turns from round to round.

The judge reads its own clock around every request. The round trip of a request is
measured; a candidate whose own account is shorter than what was seen from outside by more
than that, and by more than was spent waiting for a processor, has a clock that lies. Before that is
said, the long batches it rests on are taken again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from kernels.evaluate.evaluation import BUSY, ClockBatch, Finding, TimingRow, TimingSection, TrialResult
from kernels.evaluate.rounds_checks import background_finding, held_finding
from kernels.evaluate.rounds_content import Content, sets_for
from kernels.evaluate.rules import (
    CANDIDATE,
    CHECKS,
    CLOCK,
    OFTEN,
    REPEATED,
    clock_finding,
    ratio_of,
    repeat_finding,
    round_trip_note,
    waiting_share,
)
from kernels.evaluate.sides import CandidateFailed, ReferenceFailed
from kernels.evaluate.timing.statistics import compare, summarise
from kernels.evaluate.trials import Drawn, Trials
from kernels.evaluate.workers.account import Account, accounted, processors
from kernels.evaluate.workers.isolation import Worker, WorkerFailed

__all__ = ["COMPILED", "REFERENCE", "REPEATED_ROUNDS", "Rounds"]

# Names of routes; the others are a problem package's peers.
REFERENCE, COMPILED = "reference", "torch.compile of the reference"

_COMPILE_SECONDS = 90.0
_SAMPLE_SECONDS = 1e-3
# A baseline has as many calls in a sample as the candidate, unless it is this many times as fast or slow.
_ALIKE = 8
_CLOCK_SECONDS = 20e-3
_WAKING_CALL_US = 5e3
_LEAST_ROUNDS = 11
_MOST_ROUNDS = 101
REPEATED_ROUNDS = 21
_CLOCK_BATCHES = 11
# Where the two clocks disagree: what disturbed the batches may pass.
_MORE_CLOCK_BATCHES = 22
_MORE_CLOCK_PAUSE_SECONDS = 0.05
# Of the time in which threads could run they waited for a processor: from here on a report mentions it.
_BUSY_SHARE = 0.1
# The whole of the timing may take this many times `seconds` of samples for each row.
_OVERHEAD = 12.0
_LEAST_WALL_SECONDS = 6.0


class _Taken(NamedTuple):
    """Seconds of one sample by the worker's clock and by the judge's, and where the latter went."""

    inside: float
    outside: float
    account: Account


@dataclass
class Rounds:
    """Times the candidate of ``trials`` beside the baselines. ``trials`` has run its default trial."""

    trials: Trials
    default: Drawn
    results: list[TrialResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # The row of times on content that nobody has seen: on the CPU that is the candidate's own.
    fresh: str = CANDIDATE
    progress: Callable[[str], None] = lambda words: None

    def __post_init__(self) -> None:
        self._samples: dict[str, list[float]] = {}
        self._calls: dict[str, int] = {}
        self._batches_taken: list[ClockBatch] = []
        self._lost: set[str] = set()
        self._round_trip = 0.0
        self._loaded = True  # whether the candidate's worker holds any content
        self.content = Content(self.trials, self.default)

    def run(self) -> TimingSection:
        """All rounds. Raises ``CandidateFailed`` and ``ReferenceFailed``."""
        routes = self._routes()
        self._draw(sets_for(self.default))
        self._plan(routes)
        for finding in (background_finding(self.trials), held_finding(self.trials, self.default)):
            if finding is not None:
                self.findings.append(finding)
        self._plan_clock()
        sets = max(self._calls[name] for name in self._left((self.fresh, *routes)) if name in self._calls)
        self._run_rounds(routes, sets)
        self._settle_clock(sets)
        return self._section(routes)

    def _timed_here(self, routes: Sequence[str]) -> Sequence[str]:
        """The routes whose samples are one pass over the round's content."""
        return routes

    def _between(self, number: int, routes: Sequence[str]) -> None:
        """What else is timed in a round."""

    def _place(self, number: int) -> None:
        """Choose where the tensors of a round lie, before anything of it is loaded."""

    def asked(self, route: str) -> tuple[Callable[..., dict[str, Any]], Worker]:
        """Who times a baseline."""
        trials = self.trials
        if route == COMPILED and trials.compiled is not None:
            return trials.ask_compiled, trials.compiled
        return trials.ask_reference, trials.reference

    def _left(self, routes: Sequence[str]) -> list[str]:
        """Those that have not been lost."""
        return [name for name in routes if name not in self._lost]

    @contextlib.contextmanager
    def _may_lose(self, name: str) -> Iterator[None]:
        """A baseline that fails here is lost alone, with a note; the reference itself is not."""
        try:
            yield
        except WorkerFailed as failure:  # neither the candidate's nor the reference's: the compiled one
            self._lose(COMPILED, failure)
        except ReferenceFailed as error:
            if name in (REFERENCE, *CHECKS, CANDIDATE) or error.failure.kind != "error":
                raise
            self._lose(name, error.failure)

    def _lose(self, name: str, failure: WorkerFailed) -> None:
        trials = self.trials
        said = f"failed while it was timed: {failure.detail}" if failure.kind == "error" else failure.detail
        trials.skipped[f"baseline {name}"] = f"it {said}"
        self._lost.add(name)
        if name == COMPILED:
            self._part_with_compiled()

    def _part_with_compiled(self) -> None:
        self._lost.add(COMPILED)
        if self.trials.compiled is not None:
            self.trials.compiled.close()

    @property
    def _compiled_left(self) -> bool:
        return self.trials.compiled is not None and COMPILED not in self._lost

    def _draw(self, sets: int) -> None:
        """Fresh content for everybody."""
        self.content.draw(sets)
        if self._compiled_left:
            with self._may_lose(COMPILED):
                self.content.give_compiled()
        self.content.forward()

    @property
    def _trip_us(self) -> float:
        return round(self._round_trip * 1e6, 1)

    # -- before the rounds ----------------------------------------------------------------------

    def _routes(self) -> list[str]:
        trials = self.trials
        made = trials.ask_reference("baselines", compiled=False)
        for name, why in made["failed"].items():
            trials.skipped[f"baseline {name}"] = why
        routes = list(made["routes"])
        if not trials.options.compile:
            trials.skipped[f"baseline {COMPILED}"] = "not asked for (--no-compile)"
            return routes
        self.progress(f"timing: {COMPILED}")
        try:
            limit = min(_COMPILE_SECONDS, trials.options.time_limit)
            made = trials.ask_compiled("baselines", compiled=True, seconds=limit)
        except WorkerFailed as failure:
            self._lose(COMPILED, failure)
            if failure.kind == "timeout":
                trials.skipped[f"baseline {COMPILED}"] = f"compiling it took more than {limit:g} s"
            return routes
        for name, why in made["failed"].items():
            trials.skipped[f"baseline {name}"] = why
        if COMPILED not in made["routes"]:
            self._part_with_compiled()
        return [*routes, *(name for name in made["routes"] if name == COMPILED)]

    def _plan(self, routes: list[str]) -> None:
        """How many calls make a sample long enough, for each route, by the judge's clock."""
        trials = self.trials
        self.content.load()
        trips, seen = [], []
        for _ in range(15):
            with accounted(trials.candidate.pid) as account:
                trials.ask_candidate("time", "ping")
            seen.append(trials.candidate.outside_s)
            trips.append(seen[-1] - (account.waited or 0.0))
        # Threads that have nothing to do with a request wait as well: it was never shorter than this.
        self._round_trip = max(median(trips), min(seen))
        most = len(self.content.written)
        for name in (self.fresh, *self._timed_here(routes)):
            with self._may_lose(name):
                self._time(name, 1, 1)  # the first may build or allocate
                each = self._seconds_of_a_call(name, most)
            if name in self._lost:
                continue
            # With one call a sample, a candidate would never see new content right after another call.
            least = min(2, most) if name == self.fresh else 1
            self._calls[name] = max(least, min(most, round(_SAMPLE_SECONDS / each)))
            ours = self._calls[self.fresh]
            if ours <= _ALIKE * self._calls[name] and self._calls[name] <= _ALIKE * ours:
                # The first calls of a sample take longer, and more content leaves less of it in the caches.
                self._calls[name] = ours

    def _seconds_of_a_call(self, name: str, most: int) -> float:
        """By the judge's clock, from requests of one call and of more: they take longer than a short call."""
        one = min(self._time(name, 1, 1).outside for _ in range(3))
        if most == 1 or one - self._round_trip > _SAMPLE_SECONDS:
            return max(one - self._round_trip, one / 10)
        more = min(self._time(name, most, 1).outside for _ in range(3))
        return max((more - one) / (most - 1), 1e-7)

    def _plan_clock(self) -> None:
        """Passes over one sample's content that take so long that a round trip does not matter."""
        sets = self._calls[self.fresh]
        passes = 1
        while passes < 100_000:
            # The least of three: a busy machine must not make the batch look long enough.
            taken = [self._time(self.fresh, sets, passes) for _ in range(3)]
            free = min(max(one.outside - (one.account.waited or 0.0), one.outside / 10) for one in taken)
            if free >= _CLOCK_SECONDS:
                break
            passes = max(passes + 1, min(passes * 10, round(passes * 1.3 * _CLOCK_SECONDS / free)))
        self._calls[CLOCK] = sets * passes
        self._calls[REPEATED] = self._calls[OFTEN] = sets
        self._samples[CLOCK] = []

    # -- the rounds --------------------------------------------------------------------------------

    def _run_rounds(self, routes: list[str], sets: int) -> None:
        options = self.trials.options
        names = [self.fresh, *self._timed_here(routes)]
        self._samples.update({name: [] for name in (*names, REPEATED, OFTEN)})
        start = time.monotonic()
        limit = max(_LEAST_WALL_SECONDS, options.seconds * _OVERHEAD)
        for number in range(_MOST_ROUNDS):
            self.progress(f"timing: round {number + 1}")
            self._place(number)
            self._draw(sets)
            if self.default.facts["mutates"]:
                # Before the baselines are timed on it: they change it.
                self.content.expected(self._calls[self.fresh])
            if number % 2 == 0:
                self._candidate_round(number)
            first = number % max(1, len(routes))
            turned = (*routes[first:], *routes[:first])
            for name in self._left(self._timed_here(turned)):
                with self._may_lose(name):
                    self._take(name)
            if number % 2:
                self._candidate_round(number)
            # Only now: the candidate may see the round's content in there.
            self._between(number, self._left(turned))
            left = self._left(names)
            spent = min(sum(self._samples[name]) * self._calls[name] / 1e6 for name in left)
            late = time.monotonic() - start > limit
            enough = number + 1 >= _LEAST_ROUNDS and (spent >= options.seconds or late)
            if enough and not (number + 1 < REPEATED_ROUNDS and self._repeats()):
                break
            if late and number + 1 >= 3 and time.monotonic() - start > 4 * limit:
                self.notes.append(f"{number + 1} rounds: the calls are too slow for {_LEAST_ROUNDS}")
                break

    def _candidate_round(self, number: int) -> None:
        self._take(self.fresh)
        self._loaded = True
        self._check_outputs(number, self._calls[self.fresh], new=True)
        if number < REPEATED_ROUNDS:
            self._take(REPEATED)
        if number < _CLOCK_BATCHES:
            self._clock_batch(number)

    def _clock_batch(self, number: int) -> None:
        self._take(CLOCK)
        # After many passes over the same tensors an in-place model's are no longer what was expected.
        if not self.default.facts["mutates"]:
            self._check_outputs(number, self._calls[self.fresh], ", the last of a long batch")

    def _settle_clock(self, sets: int) -> None:
        """More long batches while the two clocks disagree."""
        first = len(self._batches_taken)
        for number in range(first, first + _MORE_CLOCK_BATCHES):
            if self._clock_finding(self._short_us()) is None:
                return
            time.sleep(_MORE_CLOCK_PAUSE_SECONDS)
            self._draw(sets)
            self.content.load()
            self._clock_batch(number)

    def _repeats(self) -> bool:
        """Whether the rounds so far say that content seen before costs less: more of them tell."""
        taken = [name for name in (self.fresh, REPEATED, OFTEN) if self._samples[name]]
        return repeat_finding({name: self._row(name) for name in taken}, suspected=True) is not None

    def _short_us(self) -> float | None:
        """The median of the candidate's times."""
        return median(self._samples[CANDIDATE])

    def _clock_finding(self, short_us: float | None) -> Finding | None:
        calls = self._calls[CLOCK]
        return clock_finding(short_us, self._batches_taken, calls, self._trip_us, processors())

    def _check_outputs(self, number: int, count: int, what: str = "", *, new: bool = False) -> None:
        """Compare the outputs of the last timed calls; ``new``: one call on each set of new content."""
        self.results.append(self.content.check(number, count, what, new=new))

    def _take(self, name: str) -> None:
        calls, passes = self._calls[name], 1
        if name == CLOCK:
            passes = calls // self._calls[self.fresh]
        contents = self.content.written[:calls] if name in (self.fresh, REPEATED, OFTEN) else []
        inside, outside, account = self._time(name, calls // passes, passes, contents)
        inside_us, outside_us = inside / calls * 1e6, (outside - self._round_trip) / calls * 1e6
        self._samples[name].append(inside_us)
        if name == CLOCK:
            waited_us = None if account.waited is None else account.waited / calls * 1e6
            cpu_us = account.cpu / calls * 1e6
            self._batches_taken.append(ClockBatch(inside_us, outside_us, waited_us, cpu_us))

    def _time(self, name: str, sets: int, passes: int, contents: Sequence[Mapping[str, Any]] = ()) -> _Taken:
        """One sample.

        ``contents`` are written within the request, just before its calls, and the judge's clock sees
        that too: work on content that came earlier would be in nobody's time.
        """
        trials = self.trials
        # The clock check goes without: its long batches are not compared where outputs are random.
        seed = self.content.call_seed if trials.random and name != CLOCK else None
        words: dict[str, Any] = {"sets": sets, "passes": passes, "seed": seed}
        account = Account()
        if name in (self.fresh, REPEATED, OFTEN, CLOCK):
            self._wake(name, trials.ask_candidate, "time")
            if contents:
                words = {**words, "folder": str(trials.candidate.folder), "contents": contents}
            with accounted(trials.candidate.pid) as account:
                reply = trials.ask_candidate("time", "time", **words)
            outside = trials.candidate.outside_s
        else:
            ask, worker = self.asked(name)
            self._wake(name, ask, route=name)
            # As often as there are contents for the candidate.
            folder = str(worker.folder) if name in self._samples and passes == 1 else ""
            reply = ask("time", route=name, folder=folder, **words)
            outside = worker.outside_s
        inside = reply.get("ns")
        if isinstance(inside, bool) or not isinstance(inside, int) or inside <= 0:
            raise CandidateFailed("time", WorkerFailed("protocol", f"says a sample took {inside!r} ns"))
        return _Taken(inside / 1e9, outside, account)

    def _wake(self, name: str, ask: Callable[..., dict[str, Any]], *stage: str, **route: str) -> None:
        """Have the worker that was stopped run again, and what the others left in the caches make way.

        A short call does that on whatever content is there.
        """
        known = self._samples.get(name)
        if known and known[-1] < _WAKING_CALL_US and self._loaded:
            ask(*stage, "time", **route, sets=1, passes=1)
        else:
            ask(*stage, "ping")

    # -- after the rounds ----------------------------------------------------------------------------

    def _least_outside(self) -> float:
        """What the judge's clock adds to the least time, at the batch where it added least.

        What else the machine did meanwhile only adds, to some batches; a clock that lies, to all.
        """
        batches = self._batches_taken
        least = min(batch.outside_us - batch.inside_us for batch in batches)
        return min(batch.inside_us for batch in batches) + least

    def _row(self, name: str) -> TimingRow:
        return summarise(
            name,
            "eager",
            "warm",
            self._samples[name],
            self._calls[name],
            outside_us=self._least_outside() if name == CLOCK else None,
            note=round_trip_note(self._trip_us) if name == CLOCK else "",
        )

    def _section(self, routes: list[str]) -> TimingSection:
        rows = tuple(self._row(name) for name in (self.fresh, *self._left(routes), REPEATED, CLOCK))
        return self._judged(rows)

    def _judged(self, rows: tuple[TimingRow, ...]) -> TimingSection:
        """The section of ``rows``, and the findings of the rules that follow from them."""
        eager = {row.name: row for row in rows if (row.mode, row.cache) == ("eager", "warm")}
        by_key = {(row.name, row.mode, row.cache): row for row in rows}
        verdicts = []
        for row in rows:
            mine = by_key.get((CANDIDATE, row.mode, row.cache))
            if (
                row.name not in (CANDIDATE, *CHECKS)
                and row.samples_us
                and mine is not None
                and mine.samples_us
            ):
                verdicts.append(compare(mine, row))
        trip = self._trip_us
        short_us = eager[CANDIDATE].median_us if CANDIDATE in eager else None
        for finding in (self._clock_finding(short_us), repeat_finding(eager)):
            if finding is not None:
                self.findings.append(finding)
        waited = waiting_share(self._batches_taken)
        if waited >= _BUSY_SHARE:
            self.notes.append(
                f"{BUSY}: in the long batches threads that could run waited for a processor "
                f"{100 * waited:.0f} % of the time"
            )
        threads = f"{self.trials.options.threads} torch threads in every process; the others are stopped"
        taken_off = f"round trip of a request: {trip:.0f} us, taken off the times seen from outside"
        return TimingSection(
            inputs=self.default.words,
            rows=rows,
            verdicts=tuple(verdicts),
            fresh_us=eager[self.fresh].samples_us[:REPEATED_ROUNDS],
            fresh_ratio=ratio_of(eager[self.fresh], eager[REPEATED]),
            notes=(threads, taken_off, *self.notes),
            batches=tuple(self._batches_taken),
            processors=processors(),
        )
