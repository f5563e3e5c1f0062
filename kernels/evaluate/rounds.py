"""Timing in rounds: candidate and baselines take turns, each in its own process, the others stopped.

In every round the reference's worker draws content that nobody has seen, one set of inputs
for each call of a sample. The candidate is timed on it, its outputs are fetched and
checked, and it is timed once more after the same content was written again: that is what
repeated content costs, under otherwise equal conditions. Then each baseline is timed on
the same content. The order turns from round to round.

The judge reads its own clock around every request. The round trip of a request is
measured; a candidate whose own account is shorter than what was seen from outside by more
than that has a clock that lies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from kernels.evaluate.correctness import bounds_of, output_error, timed_bounds
from kernels.evaluate.evaluation import Finding, OutputError, TimingRow, TimingSection, TrialResult
from kernels.evaluate.outputs import changed_bytes, rule_broken, structure_difference
from kernels.evaluate.rules import (
    CANDIDATE,
    CHECKS,
    CLOCK,
    REPEATED,
    clock_finding,
    judged,
    ratio_of,
    repeat_finding,
    round_trip_note,
)
from kernels.evaluate.timing.statistics import compare, summarise
from kernels.evaluate.trials import CandidateFailed, Drawn, Trials
from kernels.evaluate.workers.exchange import Malformed, tensors_of
from kernels.evaluate.workers.isolation import Worker, WorkerFailed

__all__ = ["COMPILED", "Rounds"]

COMPILED = "torch.compile of the reference"

_COMPILE_SECONDS = 90.0
_SAMPLE_SECONDS = 1e-3
_CLOCK_SECONDS = 20e-3
_MOST_SETS = 16
_SETTLE_SECONDS = 0.25
_IDLE_SECONDS = 0.2
_IDLE_SHARE = 0.25
_LEAST_ROUNDS = 11
_MOST_ROUNDS = 101
_REPEATED_ROUNDS = 21
_CLOCK_BATCHES = 11
# Bytes of content in one round: as many sets as fit, but two while those fit in the larger limit.
_ROUND_BYTES = 256 << 20
_PAIR_BYTES = 2 << 30
# The whole of the timing may take this many times `seconds` of samples for each row.
_OVERHEAD = 12.0
_LEAST_WALL_SECONDS = 6.0


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

    def __post_init__(self) -> None:
        self._samples: dict[str, list[float]] = {}
        self._outside: dict[str, list[float]] = {}
        self._calls: dict[str, int] = {}
        self._round_trip = 0.0
        self._known: list[Any] = []
        self._call_seed = 0

    def run(self) -> TimingSection:
        """All rounds. Raises ``CandidateFailed`` and ``ReferenceFailed``."""
        routes = self._routes()
        self._contents(_sets_for(self._set_bytes()))
        self._plan(routes)
        self._check_idle()
        self._check_held()
        self._plan_clock()
        sets = max(self._calls[name] for name in (self.fresh, *routes) if name in self._calls)
        self._run_rounds(routes, sets)
        return self._section(routes)

    def _timed_here(self, routes: Sequence[str]) -> Sequence[str]:
        """The routes whose samples are one pass over the round's content."""
        return routes

    def _between(self, number: int, routes: Sequence[str]) -> None:
        """What else is timed in a round."""

    def asked(self, route: str) -> tuple[Callable[..., dict[str, Any]], Worker]:
        """Who times a baseline."""
        trials = self.trials
        if route == COMPILED and trials.compiled is not None:
            return trials.ask_compiled, trials.compiled
        return trials.ask_reference, trials.reference

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
        try:
            limit = min(_COMPILE_SECONDS, trials.options.time_limit)
            made = trials.ask_compiled("baselines", compiled=True, seconds=limit)
        except WorkerFailed as failure:
            trials.skipped[f"baseline {COMPILED}"] = f"it {failure.detail}"
            return routes
        for name, why in made["failed"].items():
            trials.skipped[f"baseline {name}"] = why
        return [*routes, *(name for name in made["routes"] if name == COMPILED)]

    def _set_bytes(self) -> int:
        return sum(storage.numel() for storage in self.default.storages) or 1

    def _contents(self, count: int) -> None:
        """Fresh content for ``count`` sets, in the reference's worker and the candidate's folder."""
        trials = self.trials
        self._known = []
        trials.discard_inputs()
        seeds = [trials.fresh_seed() for _ in range(count)]
        # The one for each call of a sample follows from it.
        self._call_seed = trials.fresh_seed()
        reply = trials.ask_reference(
            "contents", folder=str(trials.reference.folder), name=f"t{trials.fresh_seed()}", seeds=seeds
        )
        self._seeds = seeds
        if trials.compiled is not None and trials.compiled.failure is None:
            folder = str(trials.reference.folder)
            trials.ask_compiled("load", folder=folder, first=0, values=reply["inputs"])
        forwarded = [trials.forward(written) for written in reply["inputs"]]
        self._written = [written for written, _ in forwarded]
        self._bytes = [storages for _, storages in forwarded]

    def _load(self) -> None:
        folder = str(self.trials.candidate.folder)
        self.trials.ask_candidate("time", "load", folder=folder, first=0, values=self._written)

    def _plan(self, routes: list[str]) -> None:
        """How many calls make a sample long enough, for each route, by the judge's clock."""
        trials = self.trials
        self._load()
        trips = []
        for _ in range(15):
            trials.ask_candidate("time", "ping")
            trips.append(trials.candidate.outside_s)
        self._round_trip = median(trips)
        most = len(self._written)
        for name in (self.fresh, *self._timed_here(routes)):
            self._time(name, 1, 1)  # the first may build or allocate
            each = min(self._time(name, 1, 1)[1] for _ in range(3))
            each = max(each - self._round_trip, each / 10, 1e-7)
            # With one call a sample, a candidate would never see new content right after another call.
            least = min(2, most) if name == self.fresh else 1
            self._calls[name] = max(least, min(most, round(_SAMPLE_SECONDS / each)))

    def _check_idle(self) -> None:
        """Rule "background": it works while nothing is asked of it, and so outside every timed call."""
        candidate = self.trials.candidate
        self.trials.ask_candidate("time", "ping")
        # Threads of a library may wait for more work by spinning, for a while.
        time.sleep(_SETTLE_SECONDS)
        before = candidate.cpu_seconds()
        time.sleep(_IDLE_SECONDS)
        used = candidate.cpu_seconds() - before
        if used > _IDLE_SHARE * _IDLE_SECONDS:
            message = f"used {used * 1e3:.0f} ms of CPU in {_IDLE_SECONDS * 1e3:.0f} ms with nothing to do"
            evidence = {"cpu_s": used, "waited_s": _IDLE_SECONDS}
            self.findings.append(Finding("background", "violation", "background", message, evidence=evidence))

    def _check_held(self) -> None:
        """Rule "alias" over many calls: no output is in the memory of one that is still held."""
        if self.default.facts["returns_inputs"]:
            return
        shared = self.trials.ask_candidate("time", "hold").get("shared")
        if shared is not None:
            which = str(shared)[:20]
            message = f"call {which} of a row returned memory of an earlier output that was still held"
            self.findings.append(Finding("alias", "violation", "alias", message))

    def _plan_clock(self) -> None:
        """Passes over one sample's content that take so long that a round trip does not matter."""
        sets = self._calls[self.fresh]
        passes = 1
        while passes < 100_000:
            # The least of three: a busy machine must not make the batch look long enough.
            outside = min(self._time(self.fresh, sets, passes)[1] for _ in range(3))
            if outside >= _CLOCK_SECONDS:
                break
            passes = max(passes + 1, min(passes * 10, round(passes * 1.3 * _CLOCK_SECONDS / outside)))
        self._calls[CLOCK], self._calls[REPEATED] = sets * passes, sets
        self._samples[CLOCK], self._outside[CLOCK] = [], []

    # -- the rounds --------------------------------------------------------------------------------

    def _run_rounds(self, routes: list[str], sets: int) -> None:
        options = self.trials.options
        names = [self.fresh, *self._timed_here(routes)]
        self._samples.update({name: [] for name in (*names, REPEATED)})
        self._outside.update({name: [] for name in (*names, REPEATED)})
        start = time.monotonic()
        limit = max(_LEAST_WALL_SECONDS, options.seconds * _OVERHEAD)
        for number in range(_MOST_ROUNDS):
            self._contents(sets)
            if self.default.facts["mutates"]:
                # Before the baselines are timed on it: they change it.
                self._expected(self._calls[self.fresh])
            if number % 2 == 0:
                self._candidate_round(number)
            first = number % max(1, len(routes))
            turned = (*routes[first:], *routes[:first])
            for name in self._timed_here(turned):
                self._take(name)
            self._between(number, turned)
            if number % 2:
                self._candidate_round(number)
            spent = min(sum(self._samples[name]) * self._calls[name] / 1e6 for name in names)
            late = time.monotonic() - start > limit
            if number + 1 >= _LEAST_ROUNDS and (spent >= options.seconds or late):
                break
            if late and number + 1 >= 3 and time.monotonic() - start > 4 * limit:
                self.notes.append(f"{number + 1} rounds: the calls are too slow for {_LEAST_ROUNDS}")
                break

    def _candidate_round(self, number: int) -> None:
        self._take(self.fresh)
        self._check_outputs(number, self._calls[self.fresh], seeded=True)
        if number < _REPEATED_ROUNDS:
            self._take(REPEATED)
        if number < _CLOCK_BATCHES:
            self._take(CLOCK)
            # After many passes over the same tensors an in-place model's are no longer what was expected.
            if not self.default.facts["mutates"]:
                self._check_outputs(number, self._calls[self.fresh], ", the last of a long batch")

    def _take(self, name: str) -> None:
        calls, passes = self._calls[name], 1
        if name == CLOCK:
            passes = calls // self._calls[self.fresh]
        contents = self._written[:calls] if name in (self.fresh, REPEATED) else []
        inside, outside = self._time(name, calls // passes, passes, contents)
        self._samples[name].append(inside / calls * 1e6)
        if not contents:
            self._outside[name].append((outside - self._round_trip) / calls * 1e6)

    def _time(
        self, name: str, sets: int, passes: int, contents: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[float, float]:
        """Seconds of one sample by the worker's clock and by the judge's.

        ``contents`` are written within the request, just before its calls, and the judge's clock sees
        that too: work on content that came earlier would be in nobody's time.
        """
        trials = self.trials
        # The clock check goes without: its long batches are not compared where outputs are random.
        seed = self._call_seed if trials.random and name != CLOCK else None
        words: dict[str, Any] = {"sets": sets, "passes": passes, "seed": seed}
        if name in (self.fresh, REPEATED, CLOCK):
            trials.ask_candidate("time", "ping")
            if contents:
                words = {**words, "folder": str(trials.candidate.folder), "contents": contents}
            reply = trials.ask_candidate("time", "time", **words)
            outside = trials.candidate.outside_s
        else:
            ask, worker = self.asked(name)
            ask("ping")
            reply = ask("time", route=name, **words)
            outside = worker.outside_s
        inside = reply.get("ns")
        if isinstance(inside, bool) or not isinstance(inside, int) or inside <= 0:
            raise CandidateFailed("time", WorkerFailed("protocol", f"says a sample took {inside!r} ns"))
        return inside / 1e9, outside

    # -- the outputs of timed calls -------------------------------------------------------------------

    def _check_outputs(self, number: int, count: int, what: str = "", *, seeded: bool = False) -> None:
        """Fetch the outputs of the last timed calls and compare each with what its own content gives.

        Random ones can be compared only where each call was ``seeded``.
        """
        trials = self.trials
        reply = trials.ask_candidate(
            "time", "collect", folder=str(trials.candidate.folder), name=f"o{trials.fresh_seed()}"
        )
        trials.candidate.pause()
        result = TrialResult(
            f"timed {number + 1} ({count} calls{what})", "timed", self._seeds[0], self.default.words, True
        )
        try:
            layer, reason = self._rule_broken(reply["facts"], count)
            errors: tuple[OutputError, ...] = ()
            outputs = None if layer else trials.take(reply["outputs"])
            if not layer:
                layer, reason = self._mutated(trials.take(reply["inputs"]), count)
            if not layer and (seeded or not trials.random):
                reason, errors = self._compare(outputs, count)
                layer = "output" if reason else ""
        except (Malformed, KeyError, TypeError, AttributeError, IndexError) as error:
            failure = WorkerFailed("protocol", f"answered with something else than outputs: {error}")
            raise CandidateFailed("time", failure) from error
        self.results.append(
            TrialResult(
                **{**vars(result), "passed": not layer, "layer": layer, "reason": reason, "outputs": errors}
            )
        )

    def _rule_broken(self, facts: Any, count: int) -> tuple[str, str]:
        if len(facts) != count:
            raise Malformed(f"facts of {len(facts)} calls; {count} were timed")
        for number, each in enumerate(facts, 1):
            layer, reason = rule_broken(each, self.default.facts)
            if layer:
                return layer, f"call {number}: {reason}"
        return "", ""

    def _mutated(self, inputs: Any, count: int) -> tuple[str, str]:
        if self.default.facts["mutates"]:
            return "", ""
        for ours, theirs in zip(self._bytes[:count], inputs, strict=True):
            for before, after in zip(ours, theirs, strict=True):
                changed = changed_bytes(before, after)
                if changed:
                    return "mutation", f"a timed call changed {changed} bytes of its inputs"
        return "", ""

    def _compare(self, outputs: Any, count: int) -> tuple[str, tuple[OutputError, ...]]:
        """The worst output of the round, and why it is wrong if it is."""
        trials = self.trials
        in_float64 = self._in_float64
        expected = self._expected(count)
        if not isinstance(outputs, list) or len(outputs) != count:
            raise Malformed(f"outputs of {count} calls are missing")
        worst: dict[str, OutputError] = {}
        for number, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
            plain = _cast(theirs, trials.dtypes) if in_float64 else theirs
            wrong = structure_difference(ours, plain, {}, trials.options.device)
            if wrong:
                return f"call {number + 1}: {wrong}", ()
            errors = self._errors(ours, plain, theirs if in_float64 else None)
            if in_float64 and self._movable and any(judged(error) for _, error in errors):
                errors = self._errors(ours, plain, theirs, number)
            for path, error in errors:
                if path not in worst or _badness(error) > _badness(worst[path]):
                    worst[path] = error
                reason = judged(error)
                if reason:
                    return f"call {number + 1}: {reason}", (error,)
        return "", tuple(worst.values())

    @property
    def _movable(self) -> bool:
        """Whether what rounding to float32 moves can make a difference to an output."""
        dtypes = self.trials.dtypes.values()
        # An in-place reference has changed its content before it is asked.
        changed = self.default.facts["mutates"]
        return not changed and any(bounds_of(dtype, self.default.tolerance).movable for dtype in dtypes)

    @property
    def _in_float64(self) -> bool:
        allowed, dtypes = self.trials.allowed, self.trials.dtypes
        return bool(allowed) and allowed.keys() == dtypes.keys()

    def _expected(self, count: int) -> list[Any]:
        """What the reference gives on the first ``count`` sets of this round; asked for once a round."""
        trials = self.trials
        if len(self._known) < count:
            reply = trials.ask_reference(
                "expect_contents",
                folder=str(trials.reference.folder),
                name=f"x{trials.fresh_seed()}",
                count=count,
                in_float64=self._in_float64,
                seed=self._call_seed if trials.random else None,
            )
            self._known = trials.take_reference(reply["outputs"])
        return self._known[:count]

    def _errors(
        self, ours: Any, plain: Any, oracle: Any, number: int | None = None
    ) -> list[tuple[str, OutputError]]:
        """The figures of one call's outputs; given the ``number`` of its set, with what rounding moves."""
        trials = self.trials
        exact = dict(tensors_of(oracle)) if oracle is not None else {}
        moves = {} if number is None else trials.movement(exact, number)
        found = []
        for (path, got), (_, expected) in zip(tensors_of(ours), tensors_of(plain), strict=True):
            own, allowed = trials.allowed.get(path, (0.0, 0.0))
            bounds = timed_bounds(expected.dtype, self.default.tolerance, allowed)
            error = output_error(
                path,
                got,
                expected,
                exact.get(path),
                bounds,
                movement=moves.get(path),
                own_error=own if path in exact else None,
                allowed_error=2 * allowed if path in exact else None,
            )
            found.append((path, error))
        return found

    # -- after the rounds ----------------------------------------------------------------------------

    def _least_outside(self) -> float:
        """What the judge's clock adds to the least time, at the batch where it added least.

        What else the machine did meanwhile only adds, to some batches; a clock that lies, to all.
        """
        pairs = zip(self._outside[CLOCK], self._samples[CLOCK], strict=True)
        return min(self._samples[CLOCK]) + min(outside - inside for outside, inside in pairs)

    def _outside_us(self, name: str) -> float | None:
        if name == CLOCK:
            return self._least_outside()
        return median(self._outside[name]) if self._outside[name] else None

    def _row(self, name: str) -> TimingRow:
        return summarise(
            name,
            "eager",
            "warm",
            self._samples[name],
            self._calls[name],
            outside_us=self._outside_us(name),
            note=round_trip_note(self._trip_us) if name == CLOCK else "",
        )

    def _section(self, routes: list[str]) -> TimingSection:
        rows = tuple(self._row(name) for name in (self.fresh, *routes, REPEATED, CLOCK))
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
        for finding in (clock_finding(eager, trip), repeat_finding(eager)):
            if finding is not None:
                self.findings.append(finding)
        threads = f"{self.trials.options.threads} torch threads in every process; the others are stopped"
        taken_off = f"round trip of a request: {trip:.0f} us, taken off the times seen from outside"
        return TimingSection(
            inputs=self.default.words,
            rows=rows,
            verdicts=tuple(verdicts),
            fresh_us=eager[self.fresh].samples_us[:_REPEATED_ROUNDS],
            fresh_ratio=ratio_of(eager[self.fresh], eager[REPEATED]),
            notes=(threads, taken_off, *self.notes),
        )


def _sets_for(set_bytes: int) -> int:
    """How many sets of content a round has, by the bytes of one."""
    if 2 * set_bytes > _PAIR_BYTES:
        return 1
    return max(2, min(_MOST_SETS, _ROUND_BYTES // set_bytes))


def _cast(value: Any, dtypes: Mapping[str, torch.dtype], path: str = "") -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtypes.get(path, value.dtype))
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtypes, f"{path}[{i}]") for i, item in enumerate(value))
    if isinstance(value, dict):
        return {key: _cast(item, dtypes, f"{path}[{key!r}]") for key, item in value.items()}
    return value


def _badness(error: OutputError) -> float:
    return error.max_abs if error.oracle_error is None else error.oracle_error
