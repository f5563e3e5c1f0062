"""The correctness trials: fresh inputs into both workers, both answers compared in the judge.

The candidate is stopped while the reference works, and what the reference expects is on
disk only for the moment the judge takes to read it, so the candidate never runs while
there is anything to find. The candidate's inputs are copies; the judge keeps the bytes
and compares them after the call.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kernels.evaluate.correctness import bounds_of, output_error
from kernels.evaluate.evaluation import Finding, OutputError, TrialResult
from kernels.evaluate.options import Options
from kernels.evaluate.outputs import changed_bytes, equal, leaves_of, rule_broken, structure_difference
from kernels.evaluate.precision import LOWERED
from kernels.evaluate.rules import judged
from kernels.evaluate.subject import Target
from kernels.evaluate.workers.exchange import Malformed, read_value, rebuilt, tensors_of
from kernels.evaluate.workers.isolation import Worker, WorkerFailed
from kernels.problem import Tolerance

__all__ = ["CandidateFailed", "Drawn", "ReferenceFailed", "Trials"]

_MOST_BYTES = 64 << 30
# Of the time limit of a request: the runs look at the clock between operations alone.
_MOVEMENT_SHARE = 0.4
_SEEDED = {
    "cpu": "the generator is seeded before every timed call that is compared, which is in all times",
    "cuda": "outputs of timed calls are compared on new content alone",
}


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
class Drawn:
    """Inputs drawn by the reference's worker, now in the candidate's folder."""

    name: str
    kind: str
    seed: int
    redrawn: int
    words: tuple[str, ...]
    written: Mapping[str, Any]
    storages: list[torch.Tensor]
    facts: Mapping[str, Any]
    tolerance: Tolerance | None


@dataclass
class Trials:
    """Runs trials one after the other. ``notes`` and ``skipped`` gather what is to be said beside them."""

    target: Target
    options: Options
    reference: Worker
    candidate: Worker
    # Starts one more worker for the reference: a compiler that hangs must not take the first one with it.
    spare: Callable[[], Worker]
    notes: list[Finding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    weights: str = ""
    deterministic: bool | None = None
    random: bool = False
    default: Drawn | None = None

    def __post_init__(self) -> None:
        # The candidate sees some of these; none of them tells the others.
        count, seed = itertools.count(), self.options.seed
        self._next = lambda: 1 + _hashed(f"{seed}:{next(count)}") % (2**31 - 1)
        self._failed = False
        # Both sides construct with this one; no input is ever drawn from it.
        self._weights = self._next()
        self.compiled: Worker | None = None
        self._constructed: Any = None
        self._call_seed = 0
        self._made: dict[str, Any] = {}
        self._files: list[Path] = []
        self._jitters = False
        self.allowed: dict[str, tuple[float, float]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.output_bytes = 0
        self.replaced: list[str] = []
        self._lower: set[tuple[str, str]] = set()

    # -- the trials ---------------------------------------------------------------------------

    def open(self) -> None:
        """Load both sides. The reference first: without it there is nothing to judge."""
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

    def run(self) -> Iterator[TrialResult]:
        """All trials. Raises :class:`CandidateFailed` and :class:`ReferenceFailed`."""
        for result in self._all():
            self._failed = self._failed or not result.passed
            yield result

    def _all(self) -> Iterator[TrialResult]:
        default = self.draw("default", "default", 0)
        assert default is not None
        self.default = default
        yield from self._repeated(default)
        yield from self._swapped(default)
        for number in range(1, self.options.trials + 1):
            kind = "jitter" if self._jitters else "default"
            drawn = self.draw(f"{kind} {number}", kind, number)
            if drawn is not None:
                yield from self._fresh(drawn)
        cast = self.draw("cast to float32", "cast", 0)
        if cast is not None:
            yield from self._cast(cast)
        for name in self.ask_reference("cases", most_flops_ratio=self.options.case_flops_ratio)["cases"]:
            drawn = self.draw(name, "default", 1, case=name)
            if drawn is not None:
                yield from self._fresh(drawn)
        if self.options.device == "cuda":
            yield from self._ordered()

    def _repeated(self, drawn: Drawn) -> Iterator[TrialResult]:
        """The default inputs three times: the first call, and two that must say the same."""
        outputs: list[Any] = []
        for number in range(3):
            name = drawn.name if number == 0 else f"{drawn.name}, again {number}"
            reload = number == 0 or drawn.facts["mutates"]
            yield self.judge(replace(drawn, name=name), reload=reload, keep=outputs)
        if self.random:
            return
        snapshots = [output for output in outputs if output is not None]
        if len(snapshots) == 3:
            self.deterministic = all(equal(snapshots[0], other) for other in snapshots[1:])

    def _fresh(self, drawn: Drawn) -> Iterator[TrialResult]:
        """One call; and where the first wrong values are, two more that tell whether they always are."""
        first = not self._failed
        result = self.judge(drawn)
        yield result
        if first and not result.passed and result.outputs:
            for number in (1, 2):
                yield self.judge(replace(drawn, name=f"{drawn.name}, again {number}"))

    def _swapped(self, drawn: Drawn) -> Iterator[TrialResult]:
        reply = self.ask_reference(
            "swap", folder=str(self.reference.folder), name="swap", call_seed=self._call_seed
        )
        if "skipped" in reply:
            self.skipped["swapped trial"] = reply["skipped"]
            return
        written, storages = self.forward(reply["inputs"])
        yield self.judge(
            replace(
                drawn,
                name="default, two elements swapped",
                written=written,
                storages=storages,
                facts=reply["facts"],
            )
        )

    def _cast(self, drawn: Drawn) -> Iterator[TrialResult]:
        """A candidate that refuses float32 by an exception says so honestly; a wrong answer counts."""
        try:
            yield self.judge(drawn)
        except CandidateFailed as error:
            if error.failure.kind != "error":
                raise
            self.skipped["cast to float32"] = f"the candidate refuses it: {error.failure.detail}"

    def _ordered(self) -> Iterator[TrialResult]:
        """Inputs that arrive on the current stream behind a delay, over the content of another trial."""
        before = self.draw("before order", "default", 0)
        if before is None:
            return
        self.ask_candidate(
            "order", "load", folder=str(self.candidate.folder), first=0, values=[before.written]
        )
        late = self.draw("order", "order", 0)
        if late is not None:
            yield self.judge(late, reload=False, late=True)

    # -- one trial ----------------------------------------------------------------------------

    def draw(self, name: str, kind: str, trial: int, case: str = "") -> Drawn | None:
        """Fresh inputs in the candidate's folder, and the candidate made for them; or None."""
        self._call_seed = self._next()
        self.discard_inputs()
        reply = self.ask_reference(
            "draw",
            folder=str(self.reference.folder),
            name=f"d{self._next()}",
            kind="default" if kind == "order" else kind,
            trial=trial,
            seed=self._next(),
            weights=self._weights,
            call_seed=self._call_seed,
            case=case,
        )
        if "skipped" in reply:
            self.skipped[name] = reply["skipped"]
            return None
        if reply["redrawn"]:
            self._note(
                "redrawn",
                f"{name}: the reference failed on {reply['redrawn']} draws, the first time with "
                f"{reply['first_failure']}; drawn again",
            )
        if reply["random"] and not self.random:
            self.random = True
            self._note("random", f"the reference draws random numbers: {_SEEDED[self.options.device]}")
        written, storages = self.forward(reply["inputs"])
        self._construct(reply, "float32" if kind == "cast" else "")
        return Drawn(
            name=f"{name} ({reply['name']})" if reply["name"] not in (kind, name, "default") else name,
            kind=kind,
            seed=reply["seed"],
            redrawn=reply["redrawn"],
            words=tuple(reply["words"]),
            written=written,
            storages=storages,
            facts=reply["facts"],
            tolerance=None if reply["tolerance"] is None else _tolerance(reply["tolerance"]),
        )

    def judge(
        self, drawn: Drawn, *, reload: bool = True, late: bool = False, keep: list[Any] | None = None
    ) -> TrialResult:
        """Call the candidate on ``drawn`` and compare. ``keep`` receives its outputs."""
        folder, name = str(self.candidate.folder), f"c{self._next()}"
        if reload:
            self.ask_candidate("load", "load", folder=folder, first=0, values=[drawn.written])
        reply = self.ask_candidate(
            "call",
            "call",
            folder=folder,
            name=name,
            set=0,
            seed=self._call_seed,
            late_inputs=drawn.written if late else None,
        )
        self.candidate.pause()
        result = TrialResult(drawn.name, drawn.kind, drawn.seed, drawn.words, True, redrawn=drawn.redrawn)
        try:
            layer, reason = rule_broken(reply["facts"], drawn.facts)
            if not layer and "outputs" not in reply:
                layer, reason = "type", "an output is no plain tensor"
            got = None if layer else self.take(reply["outputs"])
            if keep is not None:
                keep.append(got)
            after = [] if layer else self._inputs_after(reply["inputs"], drawn.storages)
            if not layer and not drawn.facts["mutates"]:
                layer, reason = self._mutated(after, drawn.storages)
            if layer:
                return replace(result, passed=False, layer=layer, reason=reason)
            wrong, errors = self._compare(got, after, drawn, reply["facts"])
            if wrong and "settled" in reply:
                later, _ = self._compare(self.take(reply["settled"]), after, drawn, reply["facts"])
                if not later:
                    layer = "order" if self.options.device == "cuda" else "late"
                    wrong = f"the result came after the call had returned; at its return {wrong}"
            layer = (layer or "output") if wrong else ""
            return replace(result, passed=not wrong, layer=layer, reason=wrong, outputs=errors)
        except (Malformed, KeyError, TypeError, AttributeError) as error:
            failure = WorkerFailed("protocol", f"answered a call with something else: {error}")
            raise CandidateFailed("call", failure) from error

    def _compare(
        self, got: Any, after: list[torch.Tensor], drawn: Drawn, facts: Any
    ) -> tuple[str, tuple[OutputError, ...]]:
        """Why the outputs ``got``, or what the call left in its inputs, are wrong; and every figure."""
        expected, oracle, changed, why = self._expected()
        if why and drawn.kind != "cast":
            self.skipped.setdefault("float64", why)
        devices = {fact["path"]: fact["device"] for fact in facts}
        wrong = structure_difference(got, expected, devices, self.options.device)
        if wrong:
            return wrong, ()
        errors, reason = [], ""
        oracles = dict(tensors_of(oracle))
        moves: Mapping[str, torch.Tensor] | None = None
        for (path, ours), (_, theirs) in zip(leaves_of(got), leaves_of(expected), strict=True):
            bounds = bounds_of(theirs.dtype, drawn.tolerance)
            exact = oracles.get(path)
            exact = exact if exact is not None and exact.shape == theirs.shape else None
            if not (theirs.is_floating_point() or theirs.is_complex()):
                exact = None
            error = output_error(path, ours, theirs, exact, bounds)
            if drawn.name == "default" and drawn.kind == "default":
                self.dtypes[path] = theirs.dtype
                self.output_bytes += theirs.numel() * theirs.element_size()
                if error.allowed_error is not None and error.reference_error is not None:
                    self.allowed[path] = (error.reference_error, error.allowed_error)
            if exact is not None and bounds.movable and (bounds.alone or judged(error)):
                # Some runs in float64: only where they can make a difference.
                moves = self.movement(oracles) if moves is None else moves
                error = output_error(path, ours, theirs, exact, bounds, movement=moves.get(path))
            errors.append(error)
            reason = reason or judged(error)
        left = dict(tensors_of(rebuilt(drawn.written, after))) if changed else {}
        for path, theirs in zip(drawn.facts["changes"], changed, strict=True):
            bounds = bounds_of(theirs.dtype, drawn.tolerance)
            errors.append(output_error(f" (input{path} after the call)", left[path], theirs, None, bounds))
            reason = reason or judged(errors[-1])
        return reason, tuple(errors)

    def _expected(self) -> tuple[Any, Any, list[torch.Tensor], str]:
        name = f"e{self._next()}"
        reply = self.ask_reference("expect", folder=str(self.reference.folder), name=name)
        expected = self.take_reference(reply["outputs"])
        oracle = self.take_reference(reply["oracle"]) if "oracle" in reply else None
        changed = self.take_reference(reply["changed"])
        return expected, oracle, changed, str(reply.get("no_oracle", ""))

    def movement(self, oracles: Mapping[str, Any], number: int | None = None) -> dict[str, torch.Tensor]:
        """How far rounding to float32 moves each element of ``oracles``, the answer to the current draw.

        Or to set ``number`` of the reference's. Empty where that cannot be said; ``skipped`` has the reason.
        """
        reply = self.ask_reference(
            "movement",
            folder=str(self.reference.folder),
            # No number is drawn for it: what comes later must not depend on a candidate's output.
            name=f"m{self._call_seed}",
            seed=self._call_seed,
            budget=self.options.time_limit * _MOVEMENT_SHARE,
            number=number,
        )
        if "movement" not in reply:
            self.skipped.setdefault("what rounding moves", str(reply["no_movement"]))
            return {}
        return dict(zip(oracles, self.take_reference(reply["movement"]), strict=True))

    def _inputs_after(self, written: Any, before: list[torch.Tensor]) -> list[torch.Tensor]:
        """The bytes of the inputs as the call left them."""
        after = self.take(written)
        if not isinstance(after, list) or len(after) != len(before):
            raise Malformed("other inputs than were given")
        return after

    def _mutated(self, after: list[torch.Tensor], before: list[torch.Tensor]) -> tuple[str, str]:
        for number, (ours, theirs) in enumerate(zip(before, after, strict=True)):
            changed = changed_bytes(ours, theirs)
            if changed:
                return "mutation", f"the call changed {changed} bytes of its inputs (storage {number})"
        return "", ""

    def fresh_seed(self) -> int:
        """A number nobody can foresee who does not know the evaluation's seed."""
        return self._next()

    def discard_inputs(self) -> None:
        """Remove the files of inputs that were loaded."""
        while self._files:
            _remove(self._files.pop())

    # -- the two workers ------------------------------------------------------------------------

    def ask_reference(self, do: str, /, **words: Any) -> dict[str, Any]:
        """A request to the reference's worker, with the candidate stopped."""
        self._stop_others(self.reference)
        try:
            reply = self.reference.request(do, **words)
        except WorkerFailed as failure:
            raise ReferenceFailed(failure) from failure
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
        return self.compiled.request(do, seconds=seconds, **words)

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
            self.notes.append(Finding("patched", "violation", "seal", message))
        self._note_precision("candidate", do, reply)
        return reply

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


def _tolerance(words: Mapping[str, Any]) -> Tolerance:
    return Tolerance(**{name: float(value) for name, value in words.items()})


def _remove(path: Path) -> None:
    # A candidate may have removed its own file already.
    path.unlink(missing_ok=True)
