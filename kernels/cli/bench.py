"""``bench``: time a problem beside its peers, or the first call (``bench jit``)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels.cli.arguments import above_zero, add_pair, add_variant, assignment, is_pair, whole
from kernels.cli.evaluate import bench_pair
from kernels.cli.files import check_writable, write
from kernels.cli.subjects import find_problems, obtain_all, with_variants
from kernels.cli.usage import UsageError, usage

if TYPE_CHECKING:
    from kernels.problem import Case, Problem, Request

__all__ = ["add_to"]


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's commands."""
    verb = verbs.add_parser("bench", help="time a problem beside its peers, or the first call ('bench jit')")
    verb.add_argument("packages", nargs="*", metavar="PACKAGE", help="problem packages, or jit")
    verb.add_argument("--device", choices=("cpu", "cuda"), help="(default: cuda where there is a GPU)")
    verb.add_argument(
        "--shape",
        nargs="+",
        action="append",
        type=assignment,
        metavar="NAME=VALUE",
        help="changes to the default shape, such as seqlen=4096 head_dim=128; repeat for more shapes",
    )
    verb.add_argument("--dtype", metavar="DTYPE", help="dtype of the inputs (default: the default inputs')")
    verb.add_argument(
        "--shapes",
        choices=("default", "table", "all"),
        help="two shapes with everything about each, the table of the package's bench_cases, or both "
        "(default: all on cuda, default on the CPU and with --shape or --dtype)",
    )
    verb.add_argument(
        "--seconds",
        type=above_zero,
        metavar="S",
        help="for each time taken (default: 0.5; in the table 0.3)",
    )
    verb.add_argument(
        "--limit",
        type=above_zero,
        default=1.0,
        metavar="S",
        help="leave out of the table what takes longer for one call (default: 1)",
    )
    verb.add_argument("--compile", action="store_true", help="also time torch.compile of the vectorised form")
    verb.add_argument("--arch", metavar="ARCH", help="bench jit without a GPU: the architecture to build for")
    verb.add_argument("--runs", type=whole, default=3, metavar="N", help="bench jit: cold runs (default: 3)")
    verb.add_argument(
        "--no-plain", action="store_true", help="bench jit: leave out the plain load_inline (a minute)"
    )
    verb.add_argument(
        "--json",
        nargs="?",
        const=True,
        metavar="OUT",
        help="print JSON instead of tables, or write it to OUT beside them",
    )
    add_variant(verb)
    add_pair(verb)
    verb.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if is_pair(arguments):
        return bench_pair(arguments)
    if "jit" in arguments.packages and arguments.variant:
        raise UsageError("--variant does not go with jit, which times first calls; KERNELS_VARIANT does")
    if not arguments.packages:
        raise UsageError("give a PACKAGE, jit, or both --reference FILE and --candidate FILE")
    path = arguments.json if isinstance(arguments.json, str) else ""
    printed = bool(arguments.json) and not path
    check_writable(path)
    from rich.console import Console

    from kernels.report.bench import bench_report, bench_table, startup_report
    from kernels.report.json import json_text

    console = Console()
    results = []
    if "jit" in arguments.packages:
        for result in (results := _startup_results(arguments)):
            if not printed:
                startup_report(console, result)
        complete = all(row.samples for result in results for row in result.rows)
    else:
        for result in _results(arguments):
            results.append(result)
            if not (printed or result.in_table):
                bench_report(console, result)
        tables: dict[str, list] = {}
        for result in results:
            if result.in_table:
                tables.setdefault(result.problem, []).append(result)
        if not printed:
            for lines in tables.values():
                bench_table(console, lines)
        complete = all(
            row.eager or row.tflops_from or row.left_out
            for result in results
            for row in result.rows
            if row.name.startswith("ModelNew")
        )
    if printed:
        print(json_text(results))
    if path:
        write(path, json_text(results) + "\n")
    return 0 if complete else 1


def _results(arguments: argparse.Namespace) -> Iterator:
    """The results of ``bench``, each when it is there: the shapes with everything, then the tables' lines."""
    from kernels.evaluate.bench import bench, bench_line
    from kernels.evaluate.check import request_of, targets
    from kernels.jit.operator import use_variant
    from kernels.report.terminal import tracked

    with usage():
        problems = find_problems(arguments.packages)
        device, arch = targets(arguments.device)[-1]
        runs = _served(
            [(run, request_of(run[0], run[1], device, arch)) for run in _runs(problems, device, arguments)],
            with_variants([(device, arch)], problems, arguments),
        )
    obtain_all((problem, request, name) for (problem, _, _), request, names in runs for name in names)
    given = {} if arguments.seconds is None else {"seconds": arguments.seconds}
    words = {"compiled": arguments.compile, "command": arguments.command_line, **given}
    for (problem, case, in_table), request, names in tracked(runs, "timing"):
        variants = {name: partial(use_variant, problem.name, request, name) for name in names if name}
        if in_table:
            limit = arguments.limit
            yield bench_line(problem, case, device, limit_seconds=limit, variants=variants, **words)
        else:
            yield bench(problem, case, device, variants=variants, **words)


_Timed = tuple["Problem", "Case", bool]


def _served(
    runs: Sequence[tuple[_Timed, Request]], named: Sequence[tuple[tuple[str, str], Problem, str]]
) -> list[tuple[_Timed, Request, list[str]]]:
    """Each run with the variants of its problem among ``named`` that serve it, ``""`` for the chosen one.

    A run that none of them serves is left out, and said so on standard error. Raises
    ``ValueError`` when that is every run, and where no variant was named and none serves.
    """
    from kernels.evaluate.check import chosen

    kept: list[tuple[_Timed, Request, list[str]]] = []
    refusals: list[ValueError] = []
    for run, request in runs:
        names = []
        for name in [variant for _, problem, variant in named if problem is run[0]]:
            try:
                chosen(run[0], request, name)
            except ValueError as error:
                if not name:
                    raise
                refusals.append(error)
            else:
                names.append(name)
        if names:
            kept.append((run, request, names))
    if not kept and refusals:
        raise refusals[0]
    for words in dict.fromkeys(map(str, refusals)):
        print(f"left out: {words}", file=sys.stderr)
    return kept


def _runs(problems: Sequence[Problem], device: str, arguments: argparse.Namespace) -> list[_Timed]:
    """What is timed, and whether as a line of its problem's table. Raises ``ValueError``."""
    from kernels.evaluate.bench import DEFAULT_SHAPES, case_of

    chosen = arguments.shape or arguments.dtype
    shapes = arguments.shapes or ("all" if device == "cuda" and not chosen else "default")
    if arguments.shape and shapes != "default":
        raise ValueError(f"--shape names shapes of its own; --shapes {shapes} does not go with it")
    runs: list[_Timed] = []
    if shapes in ("default", "all"):
        changes = [dict(pairs) for pairs in arguments.shape] if arguments.shape else DEFAULT_SHAPES
        runs += [
            (problem, _taken(problem, case_of(problem, change, arguments.dtype)), False)
            for problem in problems
            for change in changes
        ]
    if shapes in ("table", "all"):
        for problem in problems:
            lines = [case for case in problem.bench_cases if arguments.dtype in (None, case.dtype)]
            if not lines and shapes == "table":
                there = ", ".join(dict.fromkeys(case.dtype for case in problem.bench_cases)) or "none"
                raise ValueError(
                    f"{problem.name} has no table in dtype {arguments.dtype}; its bench_cases have: {there}"
                    if arguments.dtype
                    else f"{problem.name} names no bench_cases, which make the table"
                )
            runs += [(problem, case, True) for case in lines]
    return runs


def _taken(problem: Problem, case: Case) -> Case:
    """``case``, if the problem's operator takes such inputs; its own words as a ``ValueError`` if not.

    Asked with inputs of one batch entry and length 1 at most: what it takes depends on neither.
    """
    from kernels.problem import check_supported

    if problem.check_arguments is None:
        return case
    check_supported(problem, case.dtype, case.shape["head_dim"])
    small = {
        name: min(value, 1) if name == "batch" or name.startswith("seqlen") else value
        for name, value in case.shape.items()
    }
    try:
        problem.check_arguments(*problem.make_inputs(**small, dtype=case.dtype, **case.options))
    except TypeError as error:
        raise ValueError(str(error)) from error
    return case


def _startup_results(arguments: argparse.Namespace) -> list:
    from kernels import startup
    from kernels.device import cuda_arch_name
    from kernels.evaluate.check import targets
    from kernels.jit.build import check_arch
    from kernels.report.terminal import tracked

    with usage():
        names = [name for name in arguments.packages if name != "jit"] or [startup.PACKAGE]
        find_problems(names)
        arch = cuda_arch_name(arguments.arch) if arguments.arch else ""
        device = "cuda" if arch else targets(arguments.device)[-1][0]
    if arch:
        check_arch(arch)
    return [
        startup.measure(
            name,
            device,
            build_arch=arch,
            runs=arguments.runs,
            plain=not arguments.no_plain,
            command=arguments.command_line,
        )
        for name in tracked(names, "timing first calls")
    ]
