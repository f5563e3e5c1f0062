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
from kernels.evaluate.precision import apart, fast_allowed, full, kept, now
from kernels.evaluate.result import CheckRow
from kernels.evaluate.timing.host import once, time_once
from kernels.evaluate.timing.turns import time_eager
from kernels.problem import Case, Problem, Request, Variant, choose_variant, is_long

__all__ = [
    "Trial",
    "chosen",
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
        """Name of the variant that serves the request, as torch's precision is now; empty when none does."""
        try:
            return chosen(self.problem, self.request, self.asked).name
        except ValueError:
            return ""


def chosen(problem: Problem, request: Request, name: str = "") -> Variant:
    """The variant called ``name``, else the one that serves at torch's float32 matmul precision as it is now.

    Raises what :func:`kernels.problem.choose_variant` raises.
    """
    return choose_variant(problem, request, name, fast=fast_allowed(request.device))


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
        chosen(problem, cases[0].request, variant)  # says what is wrong, and what there is
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
    return replace(request, long=is_long(device, request.head_dim, case.shape))


def on_device(inputs: list[Any], device: str) -> list[Any]:
    """``inputs`` with every tensor moved to ``device``."""
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]


def run(trial: Trial, *, seconds: float = 0.1) -> CheckRow:
    """Compares with the reference and with float64, then times both for about ``seconds`` each.

    ``ModelNew`` is called at torch's float32 matmul precision as it is set; the reference, from which the
    bounds follow, at full precision. What either sets itself reaches neither the other nor a later check.
    Never raises for a wrong or failing operator: the row carries the reason.
    """
    with kept():
        return _run(trial, seconds)


def _run(trial: Trial, seconds: float) -> CheckRow:
    problem, case, device = trial.problem, trial.case, trial.request.device
    inputs = trial.make_inputs()

    def made(type_: type) -> Any:
        return type_(*problem.get_init_inputs()).to(device)

    with torch.no_grad():
        with full():
            model, of_model = apart(lambda: made(problem.model))
            with kept():
                of_model.restore()
                expected, reference_us = time_once(lambda: model(*inputs), device)
            oracle = problem.oracle(*inputs)
        try:
            model_new = made(problem.model_new)
            of_new = now()
            # The kernel that serves it, whatever is set when the row is written.
            trial = replace(trial, asked=trial.variant)
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
        settings = {"new": of_new.restore, "reference": of_model.restore}
        times = time_eager(calls, device, seconds=seconds, prepare=settings)
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
