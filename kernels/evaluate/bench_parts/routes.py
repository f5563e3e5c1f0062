"""What is timed: the ways to a problem's result, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.errors import first_line
from kernels.evaluate.precision import Settings, apart
from kernels.evaluate.result import BenchRow
from kernels.problem import Problem

__all__ = ["OnSets", "Route", "Variants", "failed", "is_ours", "rated", "routes_of"]

# Kernel variants by name, each with what makes ``ModelNew`` run it.
Variants = Mapping[str, Callable[[], object]]

# The times of a row from which its operations a second are counted: the first that it has.
_RATED_BY = ("graph_cold", "eager_cold", "eager")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Route:
    """A way to the result; ``select`` is what makes it the one that runs, untimed, before it is called."""

    function: Callable[..., Any]
    select: Callable[[], object] = _nothing

    def on(self, inputs: Sequence[Any]) -> Callable[[], Any]:
        """A call of the route with ``inputs``."""
        return lambda: self.function(*inputs)


@dataclass(frozen=True)
class OnSets:
    """A route's calls, one for each input set."""

    calls: Sequence[Callable[[], Any]]
    select: Callable[[], object] = _nothing


def routes_of(
    problem: Problem, device: str, compiled: bool, variants: Variants | None, *, reference: bool = False
) -> dict[str, Route]:
    """The routes by name: ``ModelNew`` or each of its variants, the reference where asked for, the peers.

    Each is made at torch's float32 matmul precision as it is set, and selecting it sets that again, or what
    the route itself set when it was made. Raises ``ValueError`` where ``compiled`` asks for a peer that
    the problem does not name.
    """
    init = problem.get_init_inputs()
    model_new, settings = apart(lambda: problem.model_new(*init).to(device))
    named = variants or {"": _nothing}
    found = {
        f"ModelNew, {name}" if name else "ModelNew": Route(model_new, _at(settings, select))
        for name, select in named.items()
    }
    if reference:
        model, settings = apart(lambda: problem.model(*init).to(device))
        found["reference"] = Route(model, settings.restore)
    peers, settings = apart(lambda: dict(problem.peers(device)) if problem.peers is not None else {})
    if compiled:
        if "vectorised" not in peers:
            raise ValueError(f"{problem.name} names no peer 'vectorised', which is what --compile compiles")
        peers["torch.compile, vectorised"] = torch.compile(peers["vectorised"], fullgraph=True)
    return found | {name: Route(peer, settings.restore) for name, peer in peers.items()}


def _at(settings: Settings, select: Callable[[], object]) -> Callable[[], None]:
    def selected() -> None:
        settings.restore()
        select()

    return selected


def failed(name: str, failure: Exception) -> BenchRow:
    """The row of a route that raised; what does not fit into the GPU's memory is left out."""
    return BenchRow(name, note=first_line(failure), left_out=isinstance(failure, torch.OutOfMemoryError))


def rated(row: BenchRow, flops: int) -> BenchRow:
    """``row`` with its operations a second, where it computes the problem and was timed."""
    for kind in _RATED_BY:
        timing = getattr(row, kind)
        if timing is not None and row.error is not None:
            return replace(row, tflops=flops / timing.median_us / 1e6, tflops_from=kind)
    return row


def is_ours(name: str) -> bool:
    """Whether a row of this name is ``ModelNew``'s."""
    return name == "ModelNew" or name.startswith("ModelNew, ")
