"""The rounds on CUDA: eager and graph replay, warm and cold L2, beside what the CPU's rounds do.

Content nobody has seen is timed in one pass by the host's clock (row "candidate, new
content"), before the CUDA timer warms up on it. The timer's own rows follow; after
every batch the outputs it left are fetched and compared, and after all of a round's
batches, in which the candidate has seen its content thousands of times, one more pass
over it is timed. In every round all tensors lie elsewhere. What the timer says is held
against the judge's clock too: eager times to the long batches of the clock check, replays
to how much longer a request with more of them takes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from kernels.evaluate.evaluation import Finding, TimingRow, TimingSection
from kernels.evaluate.rounds import COMPILED, REFERENCE, REPEATED_ROUNDS, Rounds
from kernels.evaluate.rules import CANDIDATE, CLOCK, FRESH, OFTEN, REPEATED, graph_clock_finding
from kernels.evaluate.sides import CandidateFailed, ReferenceFailed
from kernels.evaluate.timing.clocks import Sampler
from kernels.evaluate.timing.statistics import summarise
from kernels.evaluate.unavailable import Unavailable
from kernels.evaluate.workers.account import accounted
from kernels.evaluate.workers.isolation import Worker, WorkerFailed

__all__ = ["CudaRounds"]

_MODES = (("eager", "warm"), ("eager", "cold"), ("graph", "warm"), ("graph", "cold"))
_SAMPLES = 3  # of each row in a round
_BATCH_SECONDS = 0.25
# A route this slow is timed eagerly and warm alone, one call a sample.
_SLOW_SECONDS = 0.05
# A baseline goes round as many sets as this much of its calls needs: in every round each is recorded anew.
_RING_SECONDS = 0.01
# The first wakes who is asked, and is not taken.
_SLOPE_SAMPLES = (5, 5, 45)
# How often they must disagree: the slope is one difference of two times.
_SLOPES = 9
# And how often, while they do, other replays must take what they should: others' work on the GPU delays both.
# Were both late equally often, however often that is, a finding would come by chance once in 10 000 times.
_PACED = 8


@dataclass
class CudaRounds(Rounds):
    """As :class:`Rounds`, on the current CUDA device."""

    fresh: str = FRESH
    _batches: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    _calls_of: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _note_of: dict[tuple[str, str, str], str] = field(default_factory=dict)
    _slow: set[str] = field(default_factory=set)
    _sets_of: dict[str, int] = field(default_factory=dict)

    def run(self) -> TimingSection:
        """All rounds, with the clocks recorded from this process."""
        with contextlib.ExitStack() as stack:
            try:
                sampler = stack.enter_context(Sampler(_this_gpu()))
                sampler.start()
            except Unavailable as error:
                self.trials.skipped["clocks"] = str(error)
                return super().run()
            section = super().run()
            try:
                return replace(section, clocks=sampler.stop())
            except Unavailable as error:
                self.trials.skipped["clocks"] = str(error)
                return section

    def _timed_here(self, routes: Sequence[str]) -> Sequence[str]:
        return ()

    def _plan(self, routes: list[str]) -> None:
        super()._plan(routes)
        for name in self._left(routes):
            ask, worker = self.asked(name)
            with self._may_lose(name):
                ask("time", route=name, sets=1, passes=1)
                ask("time", route=name, sets=1, passes=1)
            if name in self._lost:
                continue
            self._sets_of[name] = max(2, math.ceil(_RING_SECONDS / worker.outside_s))
            if worker.outside_s > _SLOW_SECONDS:
                self._slow.add(name)

    def _place(self, number: int) -> None:
        # The time of a call of microseconds, whose tensors stay in L2, depends on where they are: by up to a
        # twentieth, and the same as long as they stay there. No place may be in all samples.
        if not number:
            return
        self.trials.ask_candidate("time", "move", place=number)
        # On the content of the round before: what calls allocate must not be in new content's time alone.
        self.content.load()
        self.trials.ask_candidate("time", "time", sets=self._calls[self.fresh], passes=1)
        self._loaded = True
        self.trials.ask_reference("move", place=number)
        if self._compiled_left:
            with self._may_lose(COMPILED):
                self.trials.ask_compiled("move", place=number)

    def _between(self, number: int, routes: Sequence[str]) -> None:
        names = [CANDIDATE, *routes] if number % 2 else [*routes, CANDIDATE]
        for mode, cache in _MODES:
            for name in self._left(names):
                if name in self._slow and (mode, cache) != ("eager", "warm"):
                    continue
                with self._may_lose(name):
                    self._batch(number, name, mode, cache)
        if number < REPEATED_ROUNDS:
            self._take(OFTEN)

    def _batch(self, number: int, name: str, mode: str, cache: str) -> None:
        key = (name, mode, cache)
        if key in self._note_of and key not in self._batches:
            return  # it failed once, and the note says why
        if name == CANDIDATE:
            self.content.load()
            self._loaded = True
        samples = 1 if name in self._slow else _SAMPLES
        reply = self._ask(name, mode, cache, samples)
        if "failed" in reply:
            self._note_of[key] = str(reply["failed"])[:300]
            return
        self._batches.setdefault(key, []).extend(_times(reply))
        self._calls_of[key] = int(reply["calls"])
        self._note_of[key] = str(reply.get("note", ""))[:300]
        # A batch goes round the same tensors: an in-place model's are no longer what was expected.
        if name == CANDIDATE and reply.get("complete") and not self.default.facts["mutates"]:
            self._check_outputs(number, self._calls[self.fresh], f", {mode}, {cache} L2")

    def _ask(self, name: str, mode: str, cache: str, samples: int) -> dict[str, Any]:
        sets = self._calls[self.fresh]
        words = {
            "mode": mode,
            "cache": cache,
            "sets": min(sets, self._sets_of.get(name, sets)),
            "samples": samples,
            "budget": _BATCH_SECONDS,
        }
        if name == CANDIDATE:
            return self.trials.ask_candidate("time", "cuda_time", **words)
        ask, _ = self.asked(name)
        try:
            return ask("cuda_time", route=name, **words)
        except WorkerFailed as failure:
            if failure.kind != "error":
                raise
            return {"failed": failure.detail}
        except ReferenceFailed as error:
            if name == REFERENCE or error.failure.kind != "error":
                raise
            return {"failed": error.failure.detail}  # a peer of the reference; nobody is judged by it

    def _short_us(self) -> float | None:
        taken = self._batches.get((CANDIDATE, "eager", "warm"))
        return median(taken) if taken else None

    def _section(self, routes: list[str]) -> TimingSection:
        rows = [
            summarise(
                name,
                mode,
                cache,
                taken,
                self._calls_of[name, mode, cache],
                note=self._note_of[name, mode, cache],
            )
            for (name, mode, cache), taken in self._batches.items()
            if name not in self._lost
        ]
        rows += [
            TimingRow(*key, note=note)
            for key, note in self._note_of.items()
            if key not in self._batches and key[0] not in self._lost
        ]
        rows += [self._row(name) for name in (FRESH, REPEATED, OFTEN, CLOCK)]
        rows.sort(key=lambda row: (row.name != CANDIDATE, _MODES.index((row.mode, row.cache))))
        section = self._judged(tuple(rows))
        self._check_graph_clock(section)
        reply = self.trials.ask_candidate("time", "kernels_seen", sets=self._calls[self.fresh])
        seen = reply.get("kernels_seen")
        if seen is None and "unavailable" in reply:
            self.trials.skipped["kernels seen"] = str(reply["unavailable"])[:300]
            return section
        if not isinstance(seen, int) or isinstance(seen, bool):
            raise CandidateFailed("time", WorkerFailed("protocol", "does not say how many kernels ran"))
        if seen == 0:
            self.findings.append(
                Finding("no-kernel", "violation", "launches", "a call puts nothing on the GPU that times it")
            )
        return replace(section, kernels_seen=seen)

    def _check_graph_clock(self, section: TimingSection) -> None:
        """Replays by the judge's clock: the difference between a short and a long request."""
        row = next(
            (r for r in section.rows if (r.name, r.mode, r.cache) == (CANDIDATE, "graph", "warm")), None
        )
        if row is None or row.median_us is None:
            return
        words = {"mode": "graph", "cache": "warm", "sets": self._calls[self.fresh], "budget": 60.0}
        trials, finding, late, paced = self.trials, None, None, 0
        for _ in range(_SLOPES):
            slope_us, _ = self._slope(
                trials.candidate, lambda n: trials.ask_candidate("time", "cuda_time", samples=n, **words)
            )
            finding = graph_clock_finding(row, slope_us)
            if finding is None:
                return
            pace_us, reply = self._slope(trials.reference, lambda n: trials.ask_reference("pace", samples=n))
            pace = TimingRow("pace", "graph", "warm", calls_per_sample=1, median_us=float(reply["us"]))
            delayed = graph_clock_finding(pace, pace_us)
            late, paced = delayed or late, paced + (delayed is None)
        if finding is None:
            return
        if paced < _PACED and late is not None:
            message = f"{finding.message}; others use this GPU, where in another process {late.message}"
            finding = replace(finding, severity="note", message=message)
        self.findings.append(finding)

    def _slope(self, worker: Worker, ask: Callable[[int], Any]) -> tuple[float, Any]:
        """What one more sample costs by the judge's clock, microseconds, and the last reply."""
        outside, reply = [], None
        for samples in _SLOPE_SAMPLES:
            with accounted(worker.pid) as account:
                reply = ask(samples)
            outside.append(max(0.0, worker.outside_s - (account.waited or 0.0)))
        return (outside[2] - outside[1]) / (_SLOPE_SAMPLES[2] - _SLOPE_SAMPLES[1]) * 1e6, reply


def _this_gpu() -> int | str:
    """The current device as NVML knows it; its index there need not be torch's."""
    index = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return index if uuid is None else f"GPU-{uuid}"


def _times(reply: dict[str, Any]) -> list[float]:
    """The samples of a reply, which may say anything."""
    samples = reply.get("samples_us")
    if isinstance(samples, list) and all(
        isinstance(each, (int, float)) and 0 < each < 1e12 for each in samples
    ):
        return [float(each) for each in samples]
    raise CandidateFailed("time", WorkerFailed("protocol", f"says samples took {str(samples)[:80]}"))
