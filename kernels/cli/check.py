"""``check``: build the operators and compare them with their references."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kernels.cli.arguments import add_packages, add_pair, add_variant, is_pair, whole
from kernels.cli.evaluate import check_pair
from kernels.cli.subjects import find_problems, obtain_all, with_variants
from kernels.cli.usage import usage

if TYPE_CHECKING:
    from kernels.evaluate.check import Trial

__all__ = ["add_to"]


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's commands."""
    verb = verbs.add_parser("check", help="build the operators and compare them with their references")
    add_packages(verb)
    verb.add_argument(
        "--device", choices=("cpu", "cuda"), help="check on this device (default: all there are)"
    )
    verb.add_argument(
        "--trials",
        type=whole,
        default=4,
        metavar="N",
        help="random shapes for each problem and device (default: 4)",
    )
    add_variant(verb)
    add_pair(verb)
    verb.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if is_pair(arguments):
        return check_pair(arguments)
    from rich.console import Console

    from kernels.evaluate.check import failed, plan, prepare, run, targets
    from kernels.report.terminal import check_report, tracked

    with usage():
        problems = find_problems(arguments.packages)
        trials = [
            trial
            for place, problem, variant in with_variants(targets(arguments.device), problems, arguments)
            for trial in plan(problem, *place, arguments.trials, variant)
        ]
    reasons = prepare(trials, lambda some: obtain_all((t.problem, t.request, t.asked) for t in some))
    rows = []
    for trial, reason in tracked(list(zip(trials, reasons, strict=True)), "checking"):
        if reason:
            rows.append(failed(trial, reason))
            continue
        _use(trial)
        rows.append(run(trial))
    check_report(Console(), rows)
    return 0 if all(row.passed for row in rows) else 1


def _use(trial: Trial) -> None:
    """Have the variant that the trial asks for by name run, from now on."""
    if trial.asked:
        from kernels.jit.operator import use_variant

        use_variant(trial.problem.name, trial.request, trial.asked)
