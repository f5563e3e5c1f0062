"""How long a call will last, told from the same case with shorter sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernels.evaluate.bench_parts.routes import Route
from kernels.evaluate.timing.host import time_once
from kernels.problem import Case, Problem

__all__ = ["Forecast", "release"]

# Lengths at which a route is run before a longer one is started.
_SHORTER = (256, 1024, 4096)


class Forecast:
    """How long a call of ``case`` lasts, told from the same case with shorter sequences.

    ``make`` makes the inputs of a case on ``device``.
    """

    def __init__(
        self, problem: Problem, case: Case, device: str, make: Callable[[Case], list[Any]], limit_us: float
    ) -> None:
        self._problem = problem
        self._device = device
        self._make = make
        self._limit_us = limit_us
        self._flops = problem.flops(case.shape)
        self._shorter = [
            _shortened(case, length)
            for length in _SHORTER
            if length < max(_lengths(case).values(), default=0)
        ]
        self._made: dict[str, list[Any]] = {}

    def too_long(self, route: Route) -> str:
        """Why ``route`` is not started on the case, or ``""``. Raises what it raises on a shorter one."""
        for number, case in enumerate(self._shorter):
            took_us = self._took_us(route, case)
            done = max(self._problem.flops(case.shape), 1)
            expected_us = took_us * self._flops / done
            if expected_us <= self._limit_us:
                return ""
            following = self._shorter[number + 1 : number + 2]
            if not following or took_us * self._problem.flops(following[0].shape) / done > self._limit_us:
                return (
                    f"about {expected_us / 1e6:.3g} s a call (by {took_us / 1e6:.2g} s at length "
                    f"{max(_lengths(case).values())}), over {self._limit_us / 1e6:g} s"
                )
        return ""

    def forget(self) -> None:
        """Let go of the inputs that were made."""
        self._made.clear()
        release(self._device)

    def _took_us(self, route: Route, case: Case) -> float:
        if case.name not in self._made:
            self._made[case.name] = self._make(case)
        call = route.on(self._made[case.name])
        route.select()
        # The first call may build, compile or tune.
        return min(time_once(call, self._device)[1] for _ in range(2))


def _lengths(case: Case) -> dict[str, int]:
    return {
        name: value for name, value in case.shape.items() if name == "seqlen" or name.startswith("seqlen_")
    }


def _shortened(case: Case, length: int) -> Case:
    shape = {**case.shape, **{name: min(value, length) for name, value in _lengths(case).items()}}
    return replace(case, name=f"{case.name}, length {length}", shape=shape)


def release(device: str) -> None:
    """Give what torch's allocator keeps back to the GPU, for graphs have memory of their own."""
    if device == "cuda":
        torch.cuda.empty_cache()
