"""Is a problem's ``ModelNew`` right on this machine: the default inputs, then random shapes.

:func:`plan` lists what to check and which specialisation each check needs, so that
the caller can have them built side by side; :func:`run` checks one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from kernels.device import cpu_arch, cuda_arch
from kernels.errors import KernelsError
from kernels.evaluate.correctness import compare, compare_with_oracle
from kernels.evaluate.result import CheckRow
from kernels.evaluate.timing.host import once, time_once
from kernels.evaluate.timing.turns import time_eager
from kernels.problem import Case, Problem, Request, choose_variant

__all__ = [
    "Trial",
    "default_case",
    "failed",
    "on_device",
    "plan",
    "prepare",
    "request_of",
    "run",
    "targets",
]


@dataclass(frozen=True)
class Trial:
    """One input to check, not made yet: ``make_inputs()`` returns it on the request's device.

    ``asked`` is the variant that was asked for by name, or ``""``.
    """

    problem: Problem
    case: Case
    request: Request
    make_inputs: Callable[[], list[Any]]
    asked: str = ""

    @property
    def variant(self) -> str:
        """Name of the variant that serves the request; empty when none does."""
        try:
            return choose_variant(self.problem, self.request, self.asked).name
        except ValueError:
            return ""


def targets(device: str | None) -> list[tuple[str, str]]:
    """(device, architecture) of what this machine has, the CPU first; of ``device`` alone when given.

    Raises ``ValueError`` when ``device`` is ``"cuda"`` and there is no NVIDIA GPU that torch can use.
    """
    on_cuda = torch.version.cuda is not None and torch.cuda.is_available()
    if device == "cuda" and not on_cuda:
        raise ValueError("torch finds no NVIDIA GPU here; python -m kernels doctor says more")
    found = [] if device == "cuda" else [("cpu", cpu_arch())]
    if on_cuda and device != "cpu":
        found.append(("cuda", cuda_arch(torch.cuda.current_device())))
    return found


def plan(problem: Problem, device: str, arch: str, trials: int, variant: str = "") -> list[Trial]:
    """The default inputs and ``trials`` jittered shapes on ``device`` (``"cpu"`` or ``"cuda"``).

    With ``variant``, what it serves: the problem's first case where that is not the default
    one, and jittered shapes drawn until there are ``trials`` (from a hundred times as many at
    most). Raises ``ValueError`` for a variant that the problem does not have for ``device``, or
    that serves none of its cases.
    """
    if variant:
        return _plan_of(problem, device, arch, trials, variant)
    default = default_case(problem)

    def default_inputs() -> list[Any]:
        torch.manual_seed(0)
        return on_device(problem.get_inputs(), device)

    planned = [Trial(problem, default, request_of(problem, default, device, arch), default_inputs)]
    for seed in range(trials):
        case = problem.jitter(seed)
        planned.append(
            Trial(problem, case, request_of(problem, case, device, arch), _maker(problem, case, device))
        )
    return planned


def _plan_of(problem: Problem, device: str, arch: str, trials: int, variant: str) -> list[Trial]:
    def trial(case: Case) -> Trial:
        request = request_of(problem, case, device, arch)
        return Trial(problem, case, request, _maker(problem, case, device), variant)

    cases = [trial(case) for case in (default_case(problem), *problem.cases)]
    first = [each for each in cases if each.variant][:1]
    if not first:
        choose_variant(problem, cases[0].request, variant)  # says what is wrong, and what there is
    drawn = (trial(problem.jitter(seed)) for seed in range(100 * trials))
    return [*first, *islice((each for each in drawn if each.variant), trials)]


def prepare(trials: Sequence[Trial], build: Callable[[Sequence[Trial]], object]) -> list[str]:
    """Has ``build`` make everything ready at once; for each trial the reason it is not, or ``""``.

    When that fails, each trial is asked for on its own, so that one kernel that does
    not compile fails its own trials and no others.
    """
    try:
        build(trials)
    except (KernelsError, ValueError):
        return [_reason(trial, build) for trial in trials]
    return [""] * len(trials)


def _reason(trial: Trial, build: Callable[[Sequence[Trial]], object]) -> str:
    try:
        build([trial])
    except (KernelsError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def default_case(problem: Problem) -> Case:
    """The case that describes ``get_inputs()``: the one called ``default``, else the first."""
    return next((case for case in problem.cases if case.name == "default"), problem.cases[0])


def request_of(problem: Problem, case: Case, device: str, arch: str) -> Request:
    """The specialisation that ``case`` needs on ``device``."""
    request = replace(
        problem.default_request(device, arch), dtype=case.dtype, head_dim=case.shape["head_dim"]
    )
    if case.shape.get("num_kv_heads"):
        request = replace(request, group_size=case.shape["num_heads"] // case.shape["num_kv_heads"])
    return request


def on_device(inputs: list[Any], device: str) -> list[Any]:
    """``inputs`` with every tensor moved to ``device``."""
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]


def run(trial: Trial, *, seconds: float = 0.1) -> CheckRow:
    """Compares with the reference and with float64, then times both for about ``seconds`` each.

    Never raises for a wrong or failing operator: the row carries the reason.
    """
    problem, case = trial.problem, trial.case
    inputs = trial.make_inputs()
    with torch.no_grad():
        model = problem.model(*problem.get_init_inputs()).to(trial.request.device)
        expected, reference_us = time_once(lambda: model(*inputs), trial.request.device)
        oracle = problem.oracle(*inputs)
        try:
            model_new = problem.model_new(*problem.get_init_inputs()).to(trial.request.device)
            got = model_new(*inputs)
        except Exception as error:  # whatever the operator does wrong is this check's finding
            return failed(trial, f"{type(error).__name__}: {error}")
        against_reference = compare(got, expected, case.tolerance)
        against_oracle = compare_with_oracle(got, expected, oracle, case.tolerance)
        calls: dict[str, Callable[[], object]] = {"new": lambda: model_new(*inputs)}
        # A reference in loops can take seconds; then the run it was compared in says enough.
        quick = reference_us < 10 * seconds * 1e6
        if quick:
            calls["reference"] = lambda: model(*inputs)
        times = time_eager(calls, trial.request.device, seconds=seconds)
        if not quick:
            times["reference"] = once(reference_us)
    return replace(
        failed(trial, against_reference.reason or against_oracle.reason),
        passed=against_reference.passed and against_oracle.passed,
        against_reference=against_reference,
        against_oracle=against_oracle,
        time=times["new"],
        reference_time=times["reference"],
    )


def failed(trial: Trial, reason: str) -> CheckRow:
    """The row of a trial that could not be run, and why."""
    return CheckRow(
        problem=trial.problem.name,
        device=trial.request.device,
        variant=trial.variant,
        case=trial.case.name,
        why=trial.case.why,
        shape=dict(trial.case.shape),
        dtype=trial.case.dtype,
        passed=False,
        reason=reason,
    )


def _maker(problem: Problem, case: Case, device: str) -> Callable[[], list[Any]]:
    return lambda: problem.make_inputs(**case.shape, dtype=case.dtype, device=device, **case.options)
