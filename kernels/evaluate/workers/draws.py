"""Where the reference's draws come from: a file in KernelBench form, or a problem package."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.evaluate.workers.calls import load_file, module_name, seed_all
from kernels.evaluate.workers.exchange import like, tensors_of
from kernels.evaluate.workers.popcorn import NAME as POPCORN
from kernels.evaluate.workers.popcorn import PopcornPri
from kernels.evaluate.workers.promoted import promoted

__all__ = ["Draw", "FileSide", "NoCast", "PackageSide"]

# Dtypes that carry numbers; int32, int64 and bool carry indices and masks, which no cast may touch.
_FLOAT8 = tuple(value for name, value in vars(torch).items() if name.startswith("float8_"))
_FLOATS = (torch.float16, torch.bfloat16, torch.float64, *_FLOAT8)
_BYTES = (torch.int8, torch.uint8)
_CARRIERS = (*_FLOATS, *_BYTES)


class NoCast(Exception):
    """There is nothing to cast to float32."""


@dataclass
class Draw:
    """One model with its inputs. ``oracle`` computes in float64, or is None."""

    name: str
    model: Any
    inputs: list[Any]
    init: list[Any]
    oracle: Callable[..., Any] | None = None
    tolerance: Mapping[str, float] | None = None
    cost: tuple[int, int] | None = None  # operations and least bytes, where the problem says them
    notes: list[str] = field(default_factory=list)


class FileSide:
    """A file in KernelBench form."""

    def __init__(self, path: str, device: str, draws: bool) -> None:
        self._path, self._device, self._draws = path, device, draws
        self._loaded = 0
        self._module = self._load(0, 0)
        self.jitters = draws

    def _load(self, trial: int, seed: int) -> Any:
        self._loaded += 1
        extra = {POPCORN: PopcornPri(trial, seed)} if self._draws else {}
        module = load_file(self._path, module_name("reference", self._loaded), extra)
        for name in ("Model", "get_inputs", "get_init_inputs"):
            if not callable(getattr(module, name, None)):
                raise AttributeError(f"{name} is not there, or is no function or class")
        return module

    def cases(self, most_flops_ratio: float) -> list[str]:
        return []

    def peers(self) -> dict[str, Callable[..., Any]]:
        return {}

    def make(self, kind: str, trial: int, seed: int, weights: int, case: str) -> Draw:
        if self._draws:
            self._module = self._load(trial if kind == "jitter" else 0, seed)
        seed_all(weights)
        init = self._module.get_init_inputs()
        init = list(init) if isinstance(init, (list, tuple)) else init
        if isinstance(init, dict) or not isinstance(init, list):
            raise TypeError(f"get_init_inputs() returned {type(init).__name__}; supported: a list")
        seed_all(weights)
        model = self._module.Model(*init)
        if isinstance(model, torch.nn.Module):
            model = model.to(self._device)
        inputs = self.default_inputs(seed)
        draw = Draw(kind, model, inputs, init)
        if kind == "cast":
            draw.inputs = _cast_file(inputs, model, seed)
        draw.oracle = _in_float64(model, draw)
        return draw

    def default_inputs(self, seed: int) -> list[Any]:
        seed_all(seed)
        return _moved(self._module.get_inputs(), self._device)


class PackageSide:
    """A problem package: its cases, its jitter, its oracle."""

    jitters = True

    def __init__(self, package: str, device: str) -> None:
        from kernels.problem import find_problem

        self._problem, self._device = find_problem(package), device

    def cases(self, most_flops_ratio: float) -> list[str]:
        problem = self._problem
        default = self._default()
        most = most_flops_ratio * max(1, problem.flops(default.shape))
        # The default's own specialisation; of every other dtype the first. Others are built for one case.
        own = self._specialisation(default)
        found, dtypes = [], {default.dtype}
        for case in problem.cases:
            if case is default or problem.flops(case.shape) > most:
                continue
            if self._specialisation(case) == own or case.dtype not in dtypes:
                dtypes.add(case.dtype)
                found.append(case.name)
        return found

    def _specialisation(self, case: Any) -> Any:
        from kernels.evaluate.check import request_of

        return request_of(self._problem, case, self._device, "")

    def _default(self) -> Any:
        from kernels.evaluate.check import default_case

        return default_case(self._problem)

    def peers(self) -> dict[str, Callable[..., Any]]:
        return dict(self._problem.peers(self._device)) if self._problem.peers else {}

    def make(self, kind: str, trial: int, seed: int, weights: int, case: str) -> Draw:
        problem = self._problem
        chosen = self._default()
        if kind == "jitter":
            chosen = problem.jitter(seed)
        elif case:
            chosen = next(found for found in problem.cases if found.name == case)
        seed_all(weights)
        init = problem.get_init_inputs()
        seed_all(weights)
        model = problem.model(*init).to(self._device)
        if kind == "jitter" or case:
            options = {"seed": seed, **chosen.options}
            inputs = problem.make_inputs(**chosen.shape, dtype=chosen.dtype, device=self._device, **options)
        else:
            inputs = self.default_inputs(seed)
        if kind == "cast":
            inputs = _cast_inputs(inputs, model)
        cost = problem.flops(chosen.shape), problem.least_bytes(chosen.shape, chosen.dtype)
        name = chosen.name if case or kind == "jitter" else kind
        return Draw(name, model, inputs, init, problem.oracle, vars(chosen.tolerance), cost)

    def default_inputs(self, seed: int) -> list[Any]:
        seed_all(seed)
        return _moved(self._problem.get_inputs(), self._device)


def _in_float64(model: Any, draw: Draw) -> Callable[..., Any] | None:
    """``model`` in float64, on inputs cast up as they are given; None where it cannot be copied."""
    try:
        double = copy.deepcopy(model)
        if isinstance(double, torch.nn.Module):
            double = double.double()
        for part in double.modules() if isinstance(double, torch.nn.Module) else [double]:
            _raise_plain(part)
    except Exception as error:
        draw.notes.append(f"it cannot be copied to float64: {type(error).__name__}: {error}")
        return None

    def oracle(*inputs: Any) -> Any:
        raised = _mapped(copy.deepcopy(inputs), _up)
        with promoted():
            return double(*raised)

    return oracle


def _raise_plain(part: Any) -> None:
    """Raise to float64 what ``double()`` passes by: plain attributes that are tensors, or hold some."""
    own = getattr(part, "__dict__", {})
    for name, value in own.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        items = list(value.values()) if isinstance(value, dict) else items
        if any(isinstance(item, torch.Tensor) and _up(item) is not item for item in items):
            own[name] = _mapped(value, _up)


def _up(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _cast_inputs(inputs: Any, model: Any, carriers: Sequence[torch.dtype] = _CARRIERS) -> Any:
    """``inputs`` with everything of a dtype among ``carriers`` in float32. Raises :class:`NoCast`."""
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    if not any(tensor.dtype in carriers for tensor in [*(t for _, t in tensors_of(inputs)), *parameters]):
        raise NoCast("inputs and parameters are float32 already")
    return _mapped(inputs, lambda tensor: tensor.float() if tensor.dtype in carriers else tensor)


def _cast_file(inputs: Any, model: Any, seed: int) -> Any:
    """``model`` in float32, and what it is then given: integers as floats only where they mean the same.

    Packed bits and indices in bytes mean nothing as floats. Raises :class:`NoCast`.
    """
    everything, given = _cast_inputs(inputs, model), inputs
    with contextlib.suppress(NoCast):
        given = _cast_inputs(inputs, model, _FLOATS)
    if isinstance(model, torch.nn.Module):
        model.float()
    if not any(tensor.dtype in _BYTES for _, tensor in tensors_of(inputs)):
        return everything
    try:
        why = "" if _agree(model, given, everything, seed) else "it gives another answer"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    if why and given is inputs:
        raise NoCast(f"the reference takes integers alone: {why}")
    return given if why else everything


def _agree(model: Any, one: Any, other: Any, seed: int) -> bool:
    """Whether ``model`` answers alike to both; neither it nor they are changed."""
    answers = []
    for inputs in (one, other):
        seed_all(seed)
        with torch.no_grad():
            answers.append(tensors_of(copy.deepcopy(model)(*copy.deepcopy(inputs))))
    pairs = [(a, b) for (_, a), (_, b) in zip(*answers, strict=True)]
    return all(a.shape == b.shape and _close(a, b) for a, b in pairs)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    largest = float(one.abs().nan_to_num(posinf=0.0).max()) if one.numel() else 0.0
    return torch.allclose(other, one, rtol=1e-4, atol=1e-4 * largest, equal_nan=True)


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return like(value, [_mapped(item, function) for item in value])
    if isinstance(value, dict):
        return {key: _mapped(item, function) for key, item in value.items()}
    return value


def _moved(inputs: Any, device: str) -> Any:
    return _mapped(inputs, lambda tensor: tensor.detach().to(device))
