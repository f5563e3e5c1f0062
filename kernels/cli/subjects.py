"""The problems, variants and kernels that a command line names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.jit.build import Built
    from kernels.jit.spec import KernelSpec
    from kernels.problem import Problem, Request

__all__ = ["find_problems", "obtain_all", "spec_of", "with_variants"]


def find_problems(names: Sequence[str]) -> list[Problem]:
    """The problems called ``names``, or all there are. Raises ``ValueError``."""
    from kernels.discover import problem_packages
    from kernels.problem import find_problem

    found = list(names) or problem_packages()
    if not found:
        raise ValueError("no problem package beside kernels or in this folder")
    return [find_problem(name) for name in found]


def with_variants(
    places: Iterable[tuple[str, str]], problems: Sequence[Problem], arguments: argparse.Namespace
) -> list[tuple[tuple[str, str], Problem, str]]:
    """(place, problem, variant) of everything that is asked for; the variant is ``""`` where none is named.

    A variant takes part on the devices that the problem has it for. Raises ``ValueError`` for one
    that a problem does not have on any of ``places``.
    """
    from kernels.problem import names_of_variants

    places = list(places)
    names = arguments.variant or [name for name in [os.environ.get("KERNELS_VARIANT", "")] if name]
    names = list(dict.fromkeys(names)) or [""]
    for problem in problems:
        for name in filter(None, names):
            there = {device: names_of_variants(problem, device) for device, _ in places}
            if not any(name in found for found in there.values()):
                all_there = ", ".join(f"{v.name} ({v.device})" for v in problem.variants)
                raise ValueError(
                    f"{problem.name} has no variant {name!r} for {' or '.join(there)}; it has: {all_there}"
                )
    return [
        (place, problem, name)
        for place in places
        for problem in problems
        for name in names
        if not name or name in names_of_variants(problem, place[0])
    ]


def spec_of(problem: Problem, request: Request, variant: str) -> KernelSpec:
    """The kernel that ``request`` has now, or the one called ``variant``. Raises ``ValueError``."""
    from kernels.evaluate.precision import fast_allowed
    from kernels.jit.spec import kernel_spec

    return kernel_spec(problem, request, variant, fast=fast_allowed(request.device))


def obtain_all(wanted: Iterable[tuple[Problem, Request, str]]) -> list[Built]:
    """The bindings and the specialisations of ``wanted``, each once, built side by side."""
    from kernels.jit import load
    from kernels.jit.spec import binding_spec

    asked = list(wanted)
    bindings = [binding_spec(problem.name, problem.binding) for problem, _, _ in asked]
    return load.obtain_all(list(dict.fromkeys(bindings + [spec_of(*each) for each in asked])))
