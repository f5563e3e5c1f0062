"""The reference's worker: makes the inputs, the expected outputs and the float64 results; has the baselines.

Plain files draw inputs from ``get_inputs`` after seeding every generator; problem
packages from their cases and ``jitter``. The reference runs in its own dtype and, where it
can, once more in float64. A draw on which it fails is drawn again and counted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kernels.evaluate.result import as_json
from kernels.evaluate.workers.baselines import Baselines
from kernels.evaluate.workers.calls import InputSets, synchroniser
from kernels.evaluate.workers.draws import Draw, FileSide, NoCast, PackageSide
from kernels.evaluate.workers.exchange import describe, overlaps, pending, sent, tensors_of, write_value
from kernels.evaluate.workers.promoted import Float32Inside
from kernels.evaluate.workers.swaps import exchange_extremes

__all__ = ["Reference", "handlers"]

_MOST_REDRAWS = 20


def handlers(device: str) -> dict[str, Callable[..., dict[str, Any]]]:
    """What a reference's worker answers to."""
    reference = Reference(device)
    return {
        "ping": dict,
        "open": reference.open,
        "cases": reference.cases,
        "draw": reference.draw,
        "swap": reference.swap,
        "load": reference.load,
        "expect": reference.expect,
        "contents": reference.contents,
        "expect_contents": reference.expect_contents,
        "movement": reference.movement,
        "gradients": reference.gradients,
        "baselines": reference.make_baselines,
        "time": reference.baselines.time,
        "cuda_time": reference.baselines.cuda_time,
        "move": reference.baselines.move,
        "pace": reference.pace,
        "count": reference.count,
    }


class Reference:
    """The state of the worker: where draws come from, the current one, the contents being timed on."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._side: Any = None
        self._draw: Draw | None = None
        self._expected: Any = None
        self._facts: dict[str, Any] = {}
        self._changed: list[torch.Tensor] = []
        self._random = False
        self._sets = InputSets(device)
        self._synchronise = synchroniser(device)
        self.baselines = Baselines(device, self._sets)

    def open(self, path: str, package: str, draws: bool) -> dict[str, Any]:
        """Load the reference file, or the problem package."""
        self._side = FileSide(path, self._device, draws) if path else PackageSide(package, self._device)
        return {"jitters": self._side.jitters}

    def cases(self, most_flops_ratio: float) -> dict[str, Any]:
        """Names of the package's cases that are worth a trial; empty for files."""
        return {"cases": self._side.cases(most_flops_ratio)}

    def draw(
        self,
        folder: str,
        name: str,
        kind: str,
        trial: int,
        seed: int,
        weights: int,
        call_seed: int,
        case: str = "",
    ) -> dict[str, Any]:
        """Draw inputs, and run the reference on them; draws on which it fails are drawn again."""
        redrawn, first, before = 0, "", self._draw
        for attempt in range(_MOST_REDRAWS):
            fresh = seed + attempt * 1_000_003
            try:
                draw = self._side.make(kind, trial, fresh, weights, case)
                self._check_inputs(draw)
                written = _written("get_inputs()", draw.inputs, Path(folder) / f"{name}.{attempt}.in")
                state = draw.model.state_dict() if isinstance(draw.model, torch.nn.Module) else {}
                # Written before the first call, which may change what a BatchNorm has counted.
                weights_written = write_value(dict(state), Path(folder) / f"{name}.{attempt}.state")
                self._draw = draw
                self._run(call_seed)
                if kind == "default" and trial == 0:
                    self._note_randomness(call_seed)
                break
            except NoCast as error:
                return {"skipped": str(error)}
            except Exception as error:
                if kind == "cast":
                    self._draw = before
                    return {"skipped": f"the reference refuses float32: {type(error).__name__}: {error}"}
                first = first or f"{type(error).__name__}: {error}"
                redrawn += 1
                # Nothing another seed could change.
                if kind != "jitter" or attempt + 1 == _MOST_REDRAWS:
                    raise
        return {
            "name": draw.name,
            "seed": fresh,
            "redrawn": redrawn,
            "first_failure": first,
            "inputs": written,
            "words": describe(draw.inputs),
            "init": _written("get_init_inputs()", draw.init, Path(folder) / f"{name}.init"),
            "state": weights_written,
            "random": self._random,
            "tolerance": None if draw.tolerance is None else as_json(dict(draw.tolerance)),
            "popcorn": {"trial": trial if kind == "jitter" else 0, "seed": fresh},
            "facts": self._facts,
        }

    def swap(self, folder: str, name: str, call_seed: int) -> dict[str, Any]:
        """The last inputs again, with two elements exchanged within a row of each floating tensor.

        Sums, shapes and nearly all elements stay; whoever knows the inputs by those is wrong. What
        an input may promise (zeros, symmetry, order) stays as well: see ``workers/swaps.py``.
        """
        draw = self._current()
        inputs = copy.deepcopy(draw.inputs)
        with torch.no_grad():
            reason = exchange_extremes(inputs)
        if reason:
            return {"skipped": reason}
        self._draw = Draw(**{**vars(draw), "inputs": inputs})
        written = write_value(inputs, Path(folder) / f"{name}.in")
        try:
            self._run(call_seed)
        except Exception as error:
            self._draw = draw
            return {"skipped": f"the reference fails on them: {type(error).__name__}: {error}"}
        return {"inputs": written, "facts": self._facts}

    def expect(self, folder: str, name: str) -> dict[str, Any]:
        """The outputs of the current draw, and float64's where there is a float64 form."""
        draw = self._current()
        reply: dict[str, Any] = {
            "outputs": write_value(self._expected, Path(folder) / f"{name}.out", values_only=True),
            "changed": write_value(self._changed, Path(folder) / f"{name}.changed", values_only=True),
        }
        if draw.oracle is None or self._random:
            if self._random:
                return {**reply, "no_oracle": "the reference draws random numbers"}
            return {**reply, "no_oracle": "; ".join(draw.notes) or "there is no float64 form"}
        try:
            with torch.no_grad():
                oracle = draw.oracle(*draw.inputs)
        except Float32Inside as error:
            return {**reply, "no_oracle": f"the reference computes in float32 inside: {error}"}
        except Exception as error:
            return {**reply, "no_oracle": f"in float64 it raises {type(error).__name__}: {error}"[:300]}
        wrong = [t.dtype for _, t in tensors_of(oracle) if t.is_floating_point() and t.dtype != torch.float64]
        if wrong:
            return {**reply, "no_oracle": f"given float64 it still returns {wrong[0]}"}
        return {**reply, "oracle": write_value(oracle, Path(folder) / f"{name}.f64", values_only=True)}

    def contents(self, folder: str, name: str, seeds: list[int]) -> dict[str, Any]:
        """Default inputs from each seed, kept as sets 0, 1, ... and written for the candidate."""
        written = []
        for number, seed in enumerate(seeds):
            inputs = self._side.default_inputs(seed)
            written.append(sent(write_value(inputs, Path(folder) / f"{name}.{number}.in")))
            # As the candidate's: into the memory that the set has.
            self._sets.load(number, Path(folder), written[-1])
        return {"inputs": written}

    def load(self, folder: str, first: int, values: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Load the content that another worker drew into the sets from ``first`` on."""
        for number, written in enumerate(values, first):
            self._sets.load(number, Path(folder), written)
        self._synchronise()
        return {}

    def expect_contents(
        self, folder: str, name: str, count: int, in_float64: bool, seed: int | None
    ) -> dict[str, Any]:
        """What float64, or the reference, says to the first ``count`` sets; seeded as when they are timed.

        And what the reference leaves in those of its inputs that are results.
        """
        draw = self._current()
        outputs, changed = [], []
        for number in range(count):
            inputs = copy.deepcopy(self._sets[number])
            outputs.append(self._answer(draw.oracle if in_float64 else draw.model, inputs, seed, number))
            if self._facts["changes"] and in_float64:
                inputs = copy.deepcopy(self._sets[number])
                self._answer(draw.model, inputs, seed, number)
            left = dict(tensors_of(inputs))
            changed.append([left[path] for path in self._facts["changes"]])
        return {
            "outputs": write_value(outputs, Path(folder) / f"{name}.out", values_only=True),
            "changed": write_value(changed, Path(folder) / f"{name}.changed", values_only=True),
        }

    def _answer(self, call: Any, inputs: Any, seed: int | None, number: int) -> Any:
        if seed is not None:
            torch.manual_seed(seed + number)
        with torch.no_grad():
            return call(*inputs)

    def movement(
        self, folder: str, name: str, seed: int, budget: float, number: int | None = None
    ) -> dict[str, Any]:
        """How far rounding to float32 moves float64's answer to the current draw, or to set ``number``.

        One tensor for each tensor of the answer; see :mod:`kernels.evaluate.workers.rounding`.
        """
        from kernels.evaluate.workers.rounding import computes_in_float64, movement

        draw = self._current()
        inputs = draw.inputs if number is None else self._sets[number]
        if draw.oracle is None:
            return {"no_movement": "there is no float64 form"}
        try:
            if computes_in_float64(draw.model, inputs):
                return {"no_movement": "the reference itself computes in float64"}
            moves = movement(draw.oracle, inputs, seed=seed, seconds=budget)
        except Exception as error:
            return {"no_movement": f"{type(error).__name__}: {error}"[:300]}
        return {"movement": write_value(moves, Path(folder) / f"{name}.moves", values_only=True)}

    def gradients(self, folder: str, name: str, seed: int) -> dict[str, Any]:
        """Gradients of the current draw, by input and parameter."""
        from kernels.evaluate.workers.gradients import gradients

        draw = self._current()
        found = gradients(draw.model, draw.inputs, seed)
        return {"gradients": write_value(found, Path(folder) / f"{name}.grad", values_only=True)}

    def make_baselines(self, compiled: bool) -> dict[str, Any]:
        """Make the routes that are timed beside the candidate; why those that fail on the default do."""
        draw = self._current()
        return self.baselines.make(draw.model, draw.inputs, self._side.peers, compiled)

    def pace(self, samples: int) -> dict[str, Any]:
        """Microseconds of one of ``samples`` replays that nobody is judged by, by the GPU's events."""
        from kernels.evaluate.workers.cuda import pace

        return {"us": pace(samples)}

    def count(self) -> dict[str, Any]:
        """Operations and least bytes of the default inputs, and who counted them."""
        draw = self._current()
        if draw.cost is not None:
            return {"flops": draw.cost[0], "least_bytes": draw.cost[1], "by": "problem package"}
        from kernels.evaluate.measures.roofline import count

        with torch.no_grad():
            flops, least_bytes, by = count(draw.model, draw.inputs)
        return {"flops": flops, "least_bytes": least_bytes, "by": by}

    def _current(self) -> Draw:
        if self._draw is None:
            raise RuntimeError("nothing was drawn yet")
        return self._draw

    def _check_inputs(self, draw: Draw) -> None:
        if not isinstance(draw.inputs, (list, tuple)):
            raise TypeError(f"get_inputs() returned {type(draw.inputs).__name__}; supported: a list")

    def _run(self, seed: int) -> None:
        """The expected outputs; whether the reference writes to its inputs, or returns them or its state."""
        draw = self._current()
        given = copy.deepcopy(draw.inputs)
        torch.manual_seed(seed)
        with torch.no_grad():
            self._expected = draw.model(*given)
        self._synchronise()
        theirs = {t.untyped_storage().data_ptr() for _, t in tensors_of(given) if t.numel()}
        state = _state_of(draw.model)
        outputs = tensors_of(self._expected)
        returned = {t.untyped_storage().data_ptr() for _, t in outputs if t.numel()}
        pairs = zip(tensors_of(given), tensors_of(draw.inputs), strict=True)
        changed = {path: after for (path, after), (_, before) in pairs if not _same(after, before)}
        # What is changed and not returned is a result of its own: a cache that is written, for one.
        apart = {p: t for p, t in changed.items() if t.untyped_storage().data_ptr() not in returned}
        self._changed = list(apart.values())
        self._facts = {
            "mutates": bool(changed),
            "changes": list(apart),
            "returns_inputs": [
                p for p, t in outputs if t.numel() and t.untyped_storage().data_ptr() in theirs
            ],
            "pending": {p: pending(t) for p, t in outputs},
            "overlaps": [p for p, t in outputs if overlaps(t)],
            "returns_state": [p for p, t in outputs if t.numel() and t.untyped_storage().data_ptr() in state],
        }

    def _note_randomness(self, call_seed: int) -> None:
        """Whether another state of the generators gives another output: dropout, for one.

        Raises ``RuntimeError`` where the same state does: nothing can be held to such an output.
        """
        first, facts, changed = self._expected, self._facts, self._changed
        self._run(call_seed)
        if _unlike(first, self._expected):
            raise RuntimeError(
                "a second call on the same inputs after the same torch.manual_seed gives another output: "
                "it keeps a state between calls, or draws from another generator"
            )
        self._run(call_seed + 1)
        pairs = zip(tensors_of(first), tensors_of(self._expected), strict=True)
        self._random = any(not _same(a, b) for (_, a), (_, b) in pairs)
        self._expected, self._facts, self._changed = first, facts, changed


def _written(by: str, value: Any, path: Path) -> dict[str, Any]:
    try:
        return write_value(value, path)
    except TypeError as error:
        raise TypeError(f"{by} returned {error}") from error


def _state_of(model: Any) -> set[int]:
    """Addresses of the storages of the parameters and buffers of ``model``."""
    held = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    return {t.untyped_storage().data_ptr() for t in held if t.layout is torch.strided and t.numel()}


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _unlike(one: Any, other: Any) -> bool:
    """Whether more differs than the order of a sum explains: 1 % of the elements by 1 % of the largest."""
    for (_, a), (_, b) in zip(tensors_of(one), tensors_of(other), strict=True):
        if a.shape != b.shape:
            return True
        wide = torch.complex128 if a.is_complex() else torch.float64
        a, b = a.to(wide), b.to(wide)
        same = (a == b) | ((a != a) & (b != b))
        close = (a - b).abs() <= 0.01 * a.abs().nan_to_num(posinf=0.0).max() if a.numel() else same
        if int((~(same | close)).sum()) > 0.01 * a.numel():
            return True
    return False
