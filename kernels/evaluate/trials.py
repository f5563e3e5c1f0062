"""The correctness trials: fresh inputs into both workers, both answers compared in the judge.

The bytes of the candidate's inputs, which the judge keeps, are compared after the call as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.evaluate.bulk import Bulk, bulk_of, median_of
from kernels.evaluate.evaluation import OutputError, TrialResult
from kernels.evaluate.grading import Known, bounds_of, output_error
from kernels.evaluate.outputs import changed_bytes, equal, leaves_of, rule_broken, structure_difference
from kernels.evaluate.rules import judged
from kernels.evaluate.sides import CandidateFailed, Sides
from kernels.evaluate.telling import words_on
from kernels.evaluate.workers.exchange import Malformed, rebuilt, tensors_of
from kernels.evaluate.workers.isolation import WorkerFailed
from kernels.problem import Tolerance

__all__ = ["Drawn", "Trials"]

# Of the time limit of a request: the runs look at the clock between operations alone.
_MOVEMENT_SHARE = 0.4
# By how many times what rounding moves the reference and its float64 form differ by more than rounding.
_ANOTHER_RATIO = 16.0
_SEEDED = {
    "cpu": "the generator is seeded before every timed call that is compared, which is in all times",
    "cuda": "outputs of timed calls are compared on new content alone",
}


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
class Trials(Sides):
    """Runs trials one after the other."""

    deterministic: bool | None = None
    random: bool = False
    default: Drawn | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._failed = False
        self._call_seed = 0
        self.known: dict[str, Known] = {}
        # Outputs whose float64 form is no form of the reference.
        self._another: set[str] = set()
        self.dtypes: dict[str, torch.dtype] = {}
        self.output_bytes = 0

    # -- the trials ---------------------------------------------------------------------------

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
        if self.options.trials:
            yield from self._others()
        else:
            self.skipped["other inputs"] = (
                "the default ones alone were asked for; check and evaluate draw more"
            )
        if self.options.device == "cuda":
            yield from self._ordered()

    def _others(self) -> Iterator[TrialResult]:
        """Fresh inputs, their cast to float32, and a package's cases."""
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
        """A candidate that refuses float32 by an exception says so honestly; wrong values count.

        One that is written for its dtype by name returns that dtype, or takes a copy that ``to`` does not
        make for another: then it serves no float32 either.
        """
        try:
            result = self.judge(drawn)
            named = result.layer in ("mutation", "alias") or (result.layer == "output" and not result.outputs)
            if named:
                self.skipped["cast to float32"] = f"the candidate serves its own dtype: {result.reason}"
            else:
                yield result
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
            name=_named(name, kind, str(reply["name"])),
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
            bulk = None if exact is None or bounds.strict else bulk_of(theirs, exact)
            if exact is not None and bulk is not None and self._may_differ(path, theirs, bulk):
                moves = self.movement(oracles) if moves is None else moves
                if self._computes_another(path, theirs, exact, moves.get(path)):
                    exact = bulk = None
            error = output_error(path, ours, theirs, exact, bounds, bulk=bulk)
            if drawn.name == "default" and drawn.kind == "default":
                self.dtypes[path] = theirs.dtype
                self.output_bytes += theirs.numel() * theirs.element_size()
                self._remember(path, error, bulk)
                odd = words_on(ours, theirs, exact, error)
                if odd:
                    self._note("output", odd)
            if exact is not None and bounds.movable and (bounds.alone or judged(error)):
                # Some runs in float64: only where they can make a difference.
                moves = self.movement(oracles) if moves is None else moves
                movement = moves.get(path)
                error = output_error(path, ours, theirs, exact, bounds, movement=movement, bulk=bulk)
            errors.append(error)
            reason = reason or judged(error)
        left = dict(tensors_of(rebuilt(drawn.written, after))) if changed else {}
        for path, theirs in zip(drawn.facts["changes"], changed, strict=True):
            bounds = bounds_of(theirs.dtype, drawn.tolerance)
            errors.append(output_error(f" (input{path} after the call)", left[path], theirs, None, bounds))
            reason = reason or judged(errors[-1])
        return reason, tuple(errors)

    def _remember(self, path: str, error: OutputError, bulk: Bulk | None) -> None:
        """What timed calls are held to; where float64 overflows elsewhere, that is the reference alone."""
        own_error, allowed = error.reference_error, error.allowed_error
        if own_error is None or allowed is None or math.isinf(allowed) or (bulk is not None and bulk.lone):
            return
        self.known[path] = Known(own_error, allowed, bulk)

    def _may_differ(self, path: str, theirs: torch.Tensor, bulk: Bulk) -> bool:
        if path in self._another:
            return True
        return bulk.apart > 0.5 and theirs.dtype in (torch.float32, torch.complex64)

    def _computes_another(
        self, path: str, theirs: torch.Tensor, exact: torch.Tensor, moved: torch.Tensor | None
    ) -> bool:
        """Whether the float64 form differs from the reference by far more than rounding explains.

        It draws other random numbers, for one, or has another mask.
        """
        if path in self._another:
            return True
        if moved is None:
            return False
        off, rounding = median_of(theirs, exact), moved.median().item()
        if off <= _ANOTHER_RATIO * rounding:
            return False
        self._another.add(path)
        self.skipped.setdefault(
            "float64",
            f"in float64 the reference computes something else: half of the elements differ by more than "
            f"{off:.3g}, and rounding to float32 moves half by less than {rounding:.3g}",
        )
        return True

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


def _named(name: str, kind: str, case: str) -> str:
    """A trial's name, with that of its case where that says more."""
    told = case in (kind, name, "default") or case.startswith(f"{kind}_")
    return name if told else f"{name} ({case})"


def _tolerance(words: Mapping[str, Any]) -> Tolerance:
    return Tolerance(**{name: float(value) for name, value in words.items()})
