"""The content of one round of timing: drawn, handed out, and what each call on it must give.

The reference's worker draws it, one set of inputs for each call of a sample. The outputs of
timed calls are compared as those of trials are: with float64 where there is one, else with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels.evaluate.evaluation import OutputError, TrialResult
from kernels.evaluate.grading import bounds_of, output_error, timed_bounds
from kernels.evaluate.outputs import changed_bytes, identical, leaves_of, rule_broken, structure_difference
from kernels.evaluate.rules import judged
from kernels.evaluate.sides import CandidateFailed
from kernels.evaluate.trials import Drawn, Trials
from kernels.evaluate.workers.exchange import Malformed, rebuilt, tensors_of
from kernels.evaluate.workers.isolation import WorkerFailed

__all__ = ["Content", "sets_for"]

_MOST_SETS = 16
# Bytes of content in one round: as many sets as fit, but two while those fit in the larger limit.
_ROUND_BYTES = 256 << 20
_PAIR_BYTES = 2 << 30


class Content:
    """The sets of inputs of the round that is under way, as they were written for the candidate.

    ``call_seed`` is where the generators are seeded from before each call on them.
    """

    def __init__(self, trials: Trials, default: Drawn) -> None:
        self.trials = trials
        self.default = default
        self.written: list[Mapping[str, Any]] = []
        self.call_seed = 0
        self._bytes: list[list[torch.Tensor]] = []
        self._seeds: list[int] = []
        self._drawn: list[Mapping[str, Any]] = []
        self._known: list[Any] = []
        self._changed: list[list[torch.Tensor]] = []
        # By number of the set: an output that was right, and its figures.
        self._right: dict[int, tuple[Any, list[tuple[str, OutputError]]]] = {}

    def draw(self, count: int) -> None:
        """Fresh content for ``count`` sets, in the reference's worker; :meth:`forward` hands it on."""
        trials = self.trials
        self._known, self._changed, self._right = [], [], {}
        trials.discard_inputs()
        seeds = [trials.fresh_seed() for _ in range(count)]
        # The one for each call of a sample follows from it.
        self.call_seed = trials.fresh_seed()
        reply = trials.ask_reference(
            "contents", folder=str(trials.reference.folder), name=f"t{trials.fresh_seed()}", seeds=seeds
        )
        self._seeds = seeds
        self._drawn = reply["inputs"]

    def give_compiled(self) -> None:
        """Have the worker of the compiled reference load it, before :meth:`forward` moves it away."""
        folder = str(self.trials.reference.folder)
        self.trials.ask_compiled("load", folder=folder, first=0, values=self._drawn)

    def forward(self) -> None:
        """Move it into the candidate's folder."""
        forwarded = [self.trials.forward(written) for written in self._drawn]
        self.written = [written for written, _ in forwarded]
        self._bytes = [storages for _, storages in forwarded]

    def load(self) -> None:
        """Have the candidate's worker load it."""
        folder = str(self.trials.candidate.folder)
        self.trials.ask_candidate("time", "load", folder=folder, first=0, values=self.written)

    def check(self, number: int, count: int, what: str = "", *, new: bool = False) -> TrialResult:
        """Fetch the outputs of the last timed calls and compare each with what its own content gives.

        ``new`` says that there was one call on each set of new content, with the generators seeded: random
        outputs, and what calls leave in their inputs, can be compared only then.
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
            after = None if layer else trials.take(reply["inputs"])
            if not layer:
                layer, reason = self._mutated(after, count)
            if not layer and (new or not trials.random):
                reason, errors = self._compare(outputs, count)
                if not reason and new and self.default.facts["changes"]:
                    reason, errors = self._left(after, count, errors)
                layer = "output" if reason else ""
        except (Malformed, KeyError, TypeError, AttributeError, IndexError) as error:
            failure = WorkerFailed("protocol", f"answered with something else than outputs: {error}")
            raise CandidateFailed("time", failure) from error
        return replace(result, passed=not layer, layer=layer, reason=reason, outputs=errors)

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
        expected = self.expected(count)
        if not isinstance(outputs, list) or len(outputs) != count:
            raise Malformed(f"outputs of {count} calls are missing")
        worst: dict[str, OutputError] = {}
        for number, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
            reason, errors = self._judge(number, ours, theirs)
            if reason:
                return f"call {number + 1}: {reason}", tuple(error for _, error in errors)
            for path, error in errors:
                if path not in worst or _badness(error) > _badness(worst[path]):
                    worst[path] = error
        return "", tuple(worst.values())

    def _left(
        self, after: Any, count: int, errors: tuple[OutputError, ...]
    ) -> tuple[str, tuple[OutputError, ...]]:
        """Why what the calls left in their inputs is wrong; ``errors`` and the figures of the worst call."""
        paths = self.default.facts["changes"]
        worst: dict[str, OutputError] = {}
        for number in range(count):
            left = dict(tensors_of(rebuilt(self.written[number], after[number])))
            for path, theirs in zip(paths, self._changed[number], strict=True):
                bounds = bounds_of(theirs.dtype, self.default.tolerance)
                error = output_error(f" (input{path} after the call)", left[path], theirs, None, bounds)
                if judged(error):
                    return f"call {number + 1}: {judged(error)}", (*errors, error)
                if path not in worst or error.max_abs > worst[path].max_abs:
                    worst[path] = error
        return "", (*errors, *worst.values())

    def _judge(self, number: int, ours: Any, theirs: Any) -> tuple[str, list[tuple[str, OutputError]]]:
        """Why the output on set ``number`` is wrong, with the figure that says so; else all its figures."""
        before = self._right.get(number)
        # Most calls on the same content return the same bits: those have been judged.
        if before is not None and identical(ours, before[0]):
            return "", before[1]
        trials, in_float64 = self.trials, self._in_float64
        plain = _cast(theirs, trials.dtypes) if in_float64 else theirs
        wrong = structure_difference(ours, plain, {}, trials.options.device)
        if wrong:
            return wrong, []
        errors = self._errors(ours, plain, theirs if in_float64 else None)
        if in_float64 and self._movable and any(judged(error) for _, error in errors):
            errors = self._errors(ours, plain, theirs, number)
        for path, error in errors:
            if judged(error):
                return judged(error), [(path, error)]
        self._right[number] = ours, errors
        return "", errors

    @property
    def _movable(self) -> bool:
        """Whether what rounding to float32 moves can make a difference to an output."""
        dtypes = self.trials.dtypes.values()
        # An in-place reference has changed its content before it is asked.
        changed = self.default.facts["mutates"]
        return not changed and any(bounds_of(dtype, self.default.tolerance).movable for dtype in dtypes)

    @property
    def _in_float64(self) -> bool:
        known, dtypes = self.trials.known, self.trials.dtypes
        return bool(known) and known.keys() == dtypes.keys()

    def expected(self, count: int) -> list[Any]:
        """What the reference gives on the first ``count`` sets of this round; asked for once a round."""
        trials = self.trials
        if len(self._known) < count:
            reply = trials.ask_reference(
                "expect_contents",
                folder=str(trials.reference.folder),
                name=f"x{trials.fresh_seed()}",
                count=count,
                in_float64=self._in_float64,
                seed=self.call_seed if trials.random else None,
            )
            self._known = trials.take_reference(reply["outputs"])
            self._changed = trials.take_reference(reply["changed"])
        return self._known[:count]

    def _errors(
        self, ours: Any, plain: Any, oracle: Any, number: int | None = None
    ) -> list[tuple[str, OutputError]]:
        """The figures of one call's outputs; given the ``number`` of its set, with what rounding moves."""
        trials = self.trials
        exact = dict(tensors_of(oracle)) if oracle is not None else {}
        moves = {} if number is None else trials.movement(exact, number)
        found = []
        for (path, got), (_, expected) in zip(leaves_of(ours), leaves_of(plain), strict=True):
            known = trials.known.get(path) if path in exact else None
            allowed = 0.0 if known is None else known.allowed
            bounds = timed_bounds(expected.dtype, self.default.tolerance, allowed)
            error = output_error(
                path,
                got,
                expected,
                exact.get(path),
                bounds,
                movement=moves.get(path),
                known=known,
            )
            found.append((path, error))
        return found


def sets_for(default: Drawn) -> int:
    """How many sets of content a round has, by the bytes of one."""
    set_bytes = sum(storage.numel() for storage in default.storages) or 1
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
