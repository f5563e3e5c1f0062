"""How far an answer moves when its intermediate results move as float32 would round them.

Where two keys nearly tie, or a sum cancels, the error that one float32 program makes says little
about the next: both lose the same digits, and what is left is luck. What float32 can know is a
property of the input. :func:`movement` measures it on the float64 form of the reference: it is run
some times, and each time every result of an operation that float32 does not hold moves by up to
``UNITS`` units of float32's precision, up or down by chance, and is rounded to float32. What float32
holds exactly (integers, masks, copies, selections, inputs) never moves, so no integer
carried in a float changes, and an answer that needs no rounding has a movement of zero.

A sum of many terms loses more than its own last digit where terms cancel: its terms move too, by
what adding that many in a row would lose.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from kernels.evaluate.workers.exchange import tensors_of
from kernels.evaluate.workers.promoted import Mode

__all__ = ["RUNS", "UNITS", "NoMovement", "computes_in_float64", "movement"]

# The largest of 16 is below half of their standard deviation once in some million elements.
RUNS = 16
LEAST_RUNS = 8
# Sums in another order, and factors folded in elsewhere, differ by about as much as two roundings.
UNITS = 2.0
# n products added in a row are as far off as if every operand had moved by sqrt(n) / 4 units. More than
# 16384 nobody adds in a row; TF32 operands are off by thousands of units.
_IN_A_ROW, _MOST_IN_A_ROW = 4.0, 32.0
_EPS = torch.finfo(torch.float32).eps
_ATEN = torch.ops.aten
# Operations that add up many terms: what they are given, and how many terms one result has.
_TERMS: dict[Any, Callable[..., int]] = {
    _ATEN.mm.default: lambda a, b: a.shape[-1],
    _ATEN.bmm.default: lambda a, b: a.shape[-1],
    _ATEN.mv.default: lambda a, b: a.shape[-1],
    _ATEN.dot.default: lambda a, b: a.shape[-1],
    _ATEN.addmm.default: lambda c, a, b, **_: a.shape[-1],
    _ATEN.baddbmm.default: lambda c, a, b, **_: a.shape[-1],
    _ATEN.addmv.default: lambda c, a, b, **_: a.shape[-1],
    _ATEN.convolution.default: lambda x, weight, *_: math.prod(weight.shape[1:]),
    _ATEN.sum.default: lambda x, **_: x.numel(),
    _ATEN.sum.dim_IntList: lambda x, dim, *_, **__: _count(x, dim),
    _ATEN.mean.default: lambda x, **_: x.numel(),
    _ATEN.mean.dim: lambda x, dim, *_, **__: _count(x, dim),
    _ATEN.cumsum.default: lambda x, dim, **_: _count(x, [dim]),
}


class NoMovement(Exception):
    """It cannot be measured; the text says why."""


def movement(
    call: Callable[..., Any], inputs: Sequence[Any], *, seed: int, seconds: float
) -> list[torch.Tensor]:
    """The largest ``|moved answer - answer|`` of every element over ``RUNS`` runs of ``call(*inputs)``.

    ``call`` computes in float64. Returns one float64 tensor for each tensor of its answer, in the
    order of :func:`tensors_of`, with a last dimension of 2 for complex ones. It is 0 where a moved
    answer is not finite: that is no measure of anything. After ``seconds`` the runs that are done
    are enough when they are ``LEAST_RUNS``; else raises :class:`NoMovement`.
    """
    # Every product has to be seen, and fused attention hides its logits.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        answers = _parts(call(*inputs))
        most = [torch.zeros_like(answer) for answer in answers]
        generator = torch.Generator().manual_seed(seed)
        start = time.monotonic()
        for run in range(RUNS):
            try:
                with _Moved(int(torch.randint(1 << 62, (), generator=generator)), start + seconds):
                    moved = _parts(call(*inputs))
            except NoMovement:
                if run >= LEAST_RUNS:
                    break
                raise
            for largest, answer, other in zip(most, answers, moved, strict=True):
                far = (other - answer).abs()
                torch.maximum(largest, far.nan_to_num(nan=0.0, posinf=0.0), out=largest)
    return most


def computes_in_float64(call: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    """Whether a tensor of float64 is among the inputs, or comes from any operation of ``call(*inputs)``.

    What float32 can know is no measure for those.
    """
    if any(_is_double(tensor) for _, tensor in tensors_of(inputs)):
        return True
    with torch.no_grad(), _Watched() as watched:
        call(*copy.deepcopy(inputs))
    return watched.double


class _Watched(Mode):
    """Notes whether any operation returns float64."""

    double = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves(result)
        self.double = self.double or any(isinstance(x, torch.Tensor) and _is_double(x) for x in leaves)
        return result


class _Moved(Mode):
    """Moves the float64 results of every operation, in place, after ``deadline`` with an exception.

    Views have no results of their own. What an operation writes into a tensor is its result.
    """

    def __init__(self, seed: int, deadline: float) -> None:
        super().__init__()
        self._seed, self._deadline = seed, deadline
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _TERMS:
            in_a_row = math.sqrt(_TERMS[func](*args, **kwargs)) / _IN_A_ROW
            units = UNITS * min(max(1.0, in_a_row), _MOST_IN_A_ROW)
            terms = [self._near(x, units) if _moves(x) else x for x in args]
            self._move(result, func(*terms, **kwargs))
        elif not func.is_view:
            for leaf in tree_leaves(result):
                self._move(leaf, leaf)
        if time.monotonic() > self._deadline:
            raise NoMovement("some runs in float64 take too long")
        return result

    def _move(self, result: Any, other: Any) -> None:
        """Put a value near ``other`` where float32 does not hold that of ``result``."""
        if not _moves(result):
            return
        if result.is_complex():
            result, other = torch.view_as_real(result), torch.view_as_real(other)
        moved = self._near(other, UNITS).float().double()
        # float32 overflows where float64 does not: a candidate may avoid that.
        inexact = (result.float().double() != result) & moved.isfinite()
        result.copy_(torch.where(inexact, moved, result))

    def _near(self, value: torch.Tensor, units: float) -> torch.Tensor:
        if value.is_complex():
            return torch.view_as_complex(self._near(torch.view_as_real(value), units))
        generator = self._generators.get(value.device)
        if generator is None:
            generator = torch.Generator(value.device).manual_seed(self._seed)
            self._generators[value.device] = generator
        short = torch.float32  # whatever the default is meanwhile
        chance = torch.rand(value.shape, generator=generator, device=value.device, dtype=short)
        return value * (1.0 + (2.0 * chance.double() - 1.0) * (units * _EPS))


def _moves(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _is_double(value) and value.numel() > 0


def _count(x: torch.Tensor, dims: Sequence[int] | None) -> int:
    """How many elements of ``x`` lie along ``dims``; None and none are all dimensions."""
    return math.prod(x.shape[dim] for dim in dims) if dims else x.numel()


def _parts(answer: Any) -> list[torch.Tensor]:
    tensors = [tensor for _, tensor in tensors_of(answer)]
    # Copies: an answer may be in memory that the next run writes.
    return [(torch.view_as_real(t) if t.is_complex() else t).to(torch.float64, copy=True) for t in tensors]


def _is_double(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float64, torch.complex128)
