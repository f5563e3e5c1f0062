"""The two sides of an evaluation: their workers, what is asked of them, and what goes between them.

One side runs at a time. The candidate is stopped while the reference works, and what the
reference expects is on disk only for the moment the judge takes to read it, so the candidate
never runs while there is anything to find. Its inputs are copies; the judge keeps the bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernels.evaluate.evaluation import Finding
from kernels.evaluate.options import Options
from kernels.evaluate.precision import LOWERED
from kernels.evaluate.subject import Target
from kernels.evaluate.workers.exchange import read_value
from kernels.evaluate.workers.isolation import Worker, WorkerFailed

__all__ = ["CandidateFailed", "ReferenceFailed", "Sides"]

_MOST_BYTES = 64 << 30

# Requests that run a side's code, and what follows where torch may multiply in less than float32 there.
_RUNS = ("draw", "swap", "expect_contents", "call", "hold", "time", "cuda_time")
_LOWER = {
    "candidate": "products there, and kernels that heed the setting, may be less accurate",
    "reference": "its own error, from which bounds follow, may be larger",
}


class ReferenceFailed(Exception):
    """The reference could not do its part. ``failure`` says how."""

    def __init__(self, failure: WorkerFailed) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class CandidateFailed(Exception):
    """The candidate could not do its part during ``stage``."""

    def __init__(self, stage: str, failure: WorkerFailed) -> None:
        super().__init__(failure.detail)
        self.stage = stage
        self.failure = failure


@dataclass
class Sides:
    """The workers of ``target``. ``notes`` and ``skipped`` gather what is to be said beside the results."""

    target: Target
    options: Options
    reference: Worker
    candidate: Worker
    # Starts one more worker for the reference: a compiler that hangs must not take the first one with it.
    spare: Callable[[], Worker]
    notes: list[Finding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    weights: str = ""

    def __post_init__(self) -> None:
        # The candidate sees some of these; none of them tells the others.
        count, seed = itertools.count(), self.options.seed
        self._next = lambda: 1 + _hashed(f"{seed}:{next(count)}") % (2**31 - 1)
        # Both sides construct with this one; no input is ever drawn from it.
        self._weights = self._next()
        self.compiled: Worker | None = None
        self._constructed: Any = None
        self._made: dict[str, Any] = {}
        self._files: list[Path] = []
        self._jitters = False
        self.replaced: list[str] = []
        self._lower: set[tuple[str, str]] = set()
        self._rescheduled = ""

    def open(self) -> None:
        """Load the reference: without it there is nothing to judge."""
        target = self.target
        opened = self.ask_reference(
            "open", path=target.reference, package=target.package, draws=target.reference_draws
        )
        self._jitters = bool(opened["jitters"])
        if not self._jitters:
            self._note(
                "fixed-shapes", "the reference's shapes are fixed: its trials differ in their seeds alone"
            )

    def open_candidate(self) -> None:
        """Import the candidate's file."""
        self._open_candidate({"trial": 0, "seed": 0})

    def fresh_seed(self) -> int:
        """A number nobody can foresee who does not know the evaluation's seed."""
        return self._next()

    def discard_inputs(self) -> None:
        """Remove the files of inputs that were loaded."""
        while self._files:
            _remove(self._files.pop())

    # -- requests ------------------------------------------------------------------------------

    def ask_reference(self, do: str, /, **words: Any) -> dict[str, Any]:
        """A request to the reference's worker, with the candidate stopped."""
        self._stop_others(self.reference)
        try:
            reply = self.reference.request(do, **words)
        except WorkerFailed as failure:
            raise ReferenceFailed(failure) from failure
        self._note_rescheduled(self.reference)
        self._note_precision("reference", do, reply)
        return reply

    def ask_compiled(self, do: str, /, *, seconds: float | None = None, **words: Any) -> dict[str, Any]:
        """A request to the worker that compiles the reference; its failure is nobody's."""
        if self.compiled is None:
            self.compiled = self.spare()
            self.compiled.started()
            target = self.target
            draws = target.reference_draws
            self.compiled.request("open", path=target.reference, package=target.package, draws=draws)
            seeds = {"seed": self._next(), "weights": self._weights, "call_seed": self._next()}
            folder = str(self.compiled.folder)
            self.compiled.request("draw", folder=folder, name="d", kind="default", trial=0, **seeds)
        self._stop_others(self.compiled)
        reply = self.compiled.request(do, seconds=seconds, **words)
        self._note_rescheduled(self.compiled)
        return reply

    def _stop_others(self, running: Worker) -> None:
        for worker in (self.reference, self.candidate, self.compiled):
            if worker is not None and worker is not running:
                worker.pause()

    def ask_candidate(self, stage: str, do: str, /, **words: Any) -> dict[str, Any]:
        """A request to the candidate's worker, with the reference stopped."""
        self._stop_others(self.candidate)
        try:
            reply = self.candidate.request(do, **words)
        except WorkerFailed as failure:
            raise CandidateFailed(stage, failure) from failure
        names = reply.get("replaced")
        if names and not self.replaced:
            self.replaced = [str(name)[:100] for name in names][:20] if isinstance(names, list) else ["?"]
            message = f"during {stage} it replaced {', '.join(self.replaced)}"
            evidence = {"replaced": self.replaced}
            self.notes.append(Finding("patched", "violation", "seal", message, evidence=evidence))
        self._note_precision("candidate", do, reply)
        return reply

    def _note_rescheduled(self, worker: Worker) -> None:
        """While it was stopped, nobody but the candidate was there to change how the system runs it."""
        if worker.rescheduled and not self._rescheduled:
            self._rescheduled = worker.rescheduled
            message = f"it changed how the system runs the reference's process: {worker.rescheduled}"
            evidence = {"thread": worker.rescheduled}
            self.notes.append(Finding("patched", "violation", "seal", message, evidence=evidence))

    def _note_precision(self, side: str, do: str, reply: Mapping[str, Any]) -> None:
        """Workers start at torch's default: what is below it now, the file or what it imports has set."""
        setting = reply.get("precision")
        if do not in _RUNS or setting not in LOWERED or (side, setting) in self._lower:
            return
        self._lower.add((side, setting))
        self._note(
            "float32-precision",
            f"the {side}'s process has set torch's float32 precision for matrix products to {setting}: "
            f"{_LOWER[side]}",
        )

    def take_reference(self, written: Any) -> Any:
        """Read what the reference wrote, and remove it."""
        value, _ = read_value(self.reference.folder, written, most_bytes=_MOST_BYTES)
        (self.reference.folder / written["file"]).unlink()
        return value

    def forward(
        self, written: Mapping[str, Any], *, keep: bool = False
    ) -> tuple[Mapping[str, Any], list[torch.Tensor]]:
        """What the reference wrote, moved to where the candidate may read it; the judge keeps the bytes."""
        _, storages = read_value(self.reference.folder, written, most_bytes=_MOST_BYTES)
        # The candidate gets the file itself and the judge keeps the bytes it read.
        name = f"i{self._next()}"
        os.rename(self.reference.folder / written["file"], self.candidate.folder / name)
        if not keep:
            self._files.append(self.candidate.folder / name)
        return {**written, "file": name}, storages

    def take(self, written: Any) -> Any:
        """Read what the candidate wrote, and remove it. Raises ``Malformed``."""
        value, _ = read_value(self.candidate.folder, written, most_bytes=_MOST_BYTES)
        _remove(self.candidate.folder / written["file"])
        return value

    @property
    def replay_words(self) -> dict[str, Any]:
        """How the candidate was opened and constructed last, for a program that does it again."""
        return {
            "device": self.options.device,
            "path": self.target.candidate,
            "package": "" if self.target.candidate else self.target.package,
            "popcorn": {"trial": 0, "seed": 0} if self.target.candidate_draws else None,
            **self._made,
        }

    def _note(self, rule: str, message: str) -> None:
        self.notes.append(Finding(rule, "note", "judge", message))

    def _construct(self, reply: Mapping[str, Any], cast: str) -> None:
        """Make the candidate anew when its arguments, the weights or the dtype are others."""
        popcorn = reply["popcorn"]
        again = self.target.candidate_draws and popcorn["trial"] > 0
        init, first = self.forward(reply["init"], keep=True)
        state, second = self.forward(reply["state"], keep=True)
        key = (init["tree"], [part.clone() for part in first], state["tree"], second, cast, again and popcorn)
        if self._constructed is not None and _same_construction(key, self._constructed):
            self._forget(init, state)
            return
        if self._made:
            self._forget(self._made["init"], self._made["state"])
        if again or (self.target.candidate_draws and self._constructed and self._constructed[5]):
            self._open_candidate(popcorn)
        self._made = {"init": init, "state": state, "seed": self._weights}
        folder = str(self.candidate.folder)
        made = self.ask_candidate("construct", "construct", folder=folder, cast=cast, **self._made)
        self.weights = self.weights or str(made.get("weights", ""))[:200]
        self._constructed = key

    def _forget(self, *values: Mapping[str, Any]) -> None:
        for written in values:
            _remove(self.candidate.folder / written["file"])

    def _open_candidate(self, popcorn: Mapping[str, int]) -> None:
        target = self.target
        package = "" if target.candidate else target.package
        draws = dict(popcorn) if target.candidate_draws else None
        self.ask_candidate("import", "open", path=target.candidate, package=package, popcorn=draws)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _same_construction(one: Any, other: Any) -> bool:
    trees = (one[0], one[2], one[4], one[5]) == (other[0], other[2], other[4], other[5])
    return trees and all(
        len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in ((one[1], other[1]), (one[3], other[3]))
    )


def _remove(path: Path) -> None:
    # A candidate may have removed its own file already.
    path.unlink(missing_ok=True)
