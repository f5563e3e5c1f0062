"""The verbs of ``python -m kernels``: parse, delegate, exit.

Exit codes: 0 done, 1 a check failed or a build did, 2 the command line is wrong.
Nothing heavy is imported before its verb runs, so that ``--help`` and ``doctor``
work where torch does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kernels import cli_evaluate
from kernels.errors import KernelsError

if TYPE_CHECKING:
    from kernels.evaluate.check import Trial
    from kernels.jit.build import Built
    from kernels.jit.spec import KernelSpec
    from kernels.problem import Case, Problem, Request

__all__ = ["UsageError", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(words)
    arguments.command_line = ["python", "-m", "kernels", *words]
    # torch says so once where numpy is not installed; nothing here wants it.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    try:
        return arguments.run(arguments)
    except KernelsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    from kernels import __version__

    parser = argparse.ArgumentParser(
        prog="python -m kernels", description="Build, check and time attention kernels on this machine."
    )
    parser.add_argument("--version", action="version", version=f"kernelwright {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    check = verbs.add_parser("check", help="build the operators and compare them with their references")
    check.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help="problem packages (default: all there are)"
    )
    check.add_argument(
        "--device", choices=("cpu", "cuda"), help="check on this device (default: all there are)"
    )
    check.add_argument(
        "--trials",
        type=_count,
        default=4,
        metavar="N",
        help="random shapes for each problem and device (default: 4)",
    )
    _add_variant(check)
    cli_evaluate.add_pair(check)
    check.set_defaults(run=_check)

    doctor = verbs.add_parser(
        "doctor", help="say what a build needs, what is there, and how to mend the rest"
    )
    doctor.set_defaults(run=_doctor)

    build = verbs.add_parser("build", help="compile ahead and print registers, shared memory and spills")
    build.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help="problem packages (default: all there are)"
    )
    build.add_argument(
        "--arch",
        nargs="+",
        metavar="ARCH",
        help="CUDA architectures, such as 9.0a; needs no GPU (default: this machine's)",
    )
    build.add_argument(
        "--dtype", nargs="+", metavar="DTYPE", help="such as float16 (default: the default inputs')"
    )
    build.add_argument("--head-dim", nargs="+", type=int, metavar="D", help="(default: the default inputs')")
    build.add_argument(
        "--group-size", nargs="+", type=int, metavar="G", help="(default: the default inputs')"
    )
    _add_variant(build)
    cli_evaluate.add_pair(build)
    build.set_defaults(run=_build)

    cache = verbs.add_parser("cache", help="list, verify or empty the cache of compiled kernels")
    actions = cache.add_subparsers(title="actions", metavar="ACTION", required=True)
    actions.add_parser("list", help="every entry, its size, age and state").set_defaults(run=_cache_list)
    actions.add_parser("verify", help="exit code 1 if an entry is damaged").set_defaults(run=_cache_verify)
    prune = actions.add_parser("prune", help="remove damaged entries, old ones, and what killed builds left")
    prune.add_argument("--days", type=float, metavar="N", help="also remove entries older than N days")
    prune.add_argument(
        "--megabytes", type=float, metavar="N", help="also remove the oldest until N MB remain"
    )
    prune.set_defaults(run=_cache_prune)
    actions.add_parser("clear", help="remove every entry").set_defaults(run=_cache_clear)

    bench = verbs.add_parser("bench", help="time a problem beside its peers, or the first call ('bench jit')")
    bench.add_argument("packages", nargs="*", metavar="PACKAGE", help="problem packages, or jit")
    bench.add_argument("--device", choices=("cpu", "cuda"), help="(default: cuda where there is a GPU)")
    bench.add_argument(
        "--shape",
        nargs="+",
        action="append",
        type=_assignment,
        metavar="NAME=VALUE",
        help="changes to the default shape, such as seqlen=4096 head_dim=128; repeat for more shapes",
    )
    bench.add_argument("--dtype", metavar="DTYPE", help="dtype of the inputs (default: the default inputs')")
    bench.add_argument(
        "--shapes",
        choices=("default", "table", "all"),
        help="two shapes with everything about each, the table of the package's bench_cases, or both "
        "(default: all on cuda, default on the CPU and with --shape or --dtype)",
    )
    bench.add_argument(
        "--seconds",
        type=_above_zero,
        metavar="S",
        help="for each time taken (default: 0.5; in the table 0.3)",
    )
    bench.add_argument(
        "--limit",
        type=_above_zero,
        default=1.0,
        metavar="S",
        help="leave out of the table what takes longer for one call (default: 1)",
    )
    bench.add_argument(
        "--compile", action="store_true", help="also time torch.compile of the vectorised form"
    )
    bench.add_argument(
        "--arch", metavar="ARCH", help="bench jit without a GPU: the architecture to build for"
    )
    bench.add_argument(
        "--runs", type=_count, default=3, metavar="N", help="bench jit: cold runs (default: 3)"
    )
    bench.add_argument(
        "--no-plain", action="store_true", help="bench jit: leave out the plain load_inline (a minute)"
    )
    bench.add_argument("--json", action="store_true", help="print JSON instead of tables")
    _add_variant(bench)
    cli_evaluate.add_pair(bench)
    bench.set_defaults(run=_bench)
    cli_evaluate.add_verbs(verbs)
    return parser


def _add_variant(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME",
        help="the kernel called NAME instead of the one that is chosen; repeat for more (default: "
        "KERNELS_VARIANT)",
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _assignment(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a whole number")
    return name, int(value)


# -- the verbs ---------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> int:
    if _is_pair(arguments):
        return cli_evaluate.check_pair(arguments)
    from rich.console import Console

    from kernels.evaluate.check import failed, plan, prepare, run, targets
    from kernels.report.terminal import check_report, tracked

    with _usage():
        problems = _problems(arguments.packages)
        trials = [
            trial
            for place, problem, variant in _with_variants(targets(arguments.device), problems, arguments)
            for trial in plan(problem, *place, arguments.trials, variant)
        ]
    reasons = prepare(trials, lambda some: _obtain_all((t.problem, t.request, t.asked) for t in some))
    rows = []
    for trial, reason in tracked(list(zip(trials, reasons, strict=True)), "checking"):
        if reason:
            rows.append(failed(trial, reason))
            continue
        _use(trial)
        rows.append(run(trial))
    check_report(Console(), rows)
    return 0 if all(row.passed for row in rows) else 1


def _doctor(arguments: argparse.Namespace) -> int:
    from kernels.toolchain import diagnose

    checks = diagnose()
    try:
        from rich.console import Console

        from kernels.report.terminal import doctor_report
    except ImportError as error:  # the one verb that must speak without its dependencies
        for check in checks:
            print(f"{'ok' if check.ok else 'MISSING'}: {check.name}: {check.detail} {check.fix}".rstrip())
        raise UsageError(f"{error}; fix: pip install -e .") from error
    doctor_report(Console(), checks)
    return 1 if any(check.required and not check.ok for check in checks) else 0


def _build(arguments: argparse.Namespace) -> int:
    if _is_pair(arguments):
        return cli_evaluate.build_pair(arguments)
    from rich.console import Console

    from kernels.device import cuda_arch_name
    from kernels.evaluate.check import targets
    from kernels.report.terminal import build_report

    with _usage():
        problems = _problems(arguments.packages)
        archs = arguments.arch
        places = [("cuda", cuda_arch_name(arch)) for arch in archs] if archs else targets(None)
        requests = [
            (problem, request, variant)
            for place, problem, variant in _with_variants(places, problems, arguments)
            for request in _requests(problem.default_request(*place), arguments)
        ]
        for wanted in requests:
            _spec(*wanted)  # a request that nothing serves is said before anything is built
    build_report(Console(), _obtain_all(requests))
    return 0


def _cache_list(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from kernels.jit import cache
    from kernels.report.terminal import cache_report

    cache_report(Console(), str(cache.cache_directory()), cache.entries())
    return 0


def _cache_verify(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from kernels.jit import cache
    from kernels.report.terminal import cache_report

    entries = cache.entries()
    cache_report(Console(), str(cache.cache_directory()), entries)
    return 0 if all(entry.ok for entry in entries) else 1


def _cache_prune(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from kernels.jit import cache
    from kernels.report.terminal import pruned_report

    pruned = cache.prune(
        older_than_s=None if arguments.days is None else arguments.days * 86_400,
        over_bytes=None if arguments.megabytes is None else int(arguments.megabytes * 1e6),
    )
    pruned_report(Console(), str(cache.cache_directory()), pruned)
    return 0


def _cache_clear(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from kernels.jit import cache
    from kernels.report.terminal import pruned_report

    pruned_report(Console(), str(cache.cache_directory()), cache.clear())
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    if _is_pair(arguments):
        return cli_evaluate.bench_pair(arguments)
    if "jit" in arguments.packages and arguments.variant:
        raise UsageError("--variant does not go with jit, which times first calls; KERNELS_VARIANT does")
    if not arguments.packages:
        raise UsageError("give a PACKAGE, jit, or both --reference FILE and --candidate FILE")
    from rich.console import Console

    from kernels.report.json import json_text
    from kernels.report.terminal import bench_report, bench_table, startup_report

    console = Console()
    results = []
    if "jit" in arguments.packages:
        for result in (results := _startup_results(arguments)):
            if not arguments.json:
                startup_report(console, result)
        complete = all(row.samples for result in results for row in result.rows)
    else:
        for result in _bench_results(arguments):
            results.append(result)
            if not (arguments.json or result.in_table):
                bench_report(console, result)
        tables: dict[str, list] = {}
        for result in results:
            if result.in_table:
                tables.setdefault(result.problem, []).append(result)
        if not arguments.json:
            for lines in tables.values():
                bench_table(console, lines)
        complete = all(
            row.eager or row.tflops_from or row.left_out
            for result in results
            for row in result.rows
            if row.name.startswith("ModelNew")
        )
    if arguments.json:
        print(json_text(results))
    return 0 if complete else 1


def _bench_results(arguments: argparse.Namespace) -> Iterator:
    """The results of ``bench``, each when it is there: the shapes with everything, then the tables' lines."""
    from kernels.evaluate.bench import bench, bench_line
    from kernels.evaluate.check import request_of, targets
    from kernels.jit.operator import use_variant
    from kernels.report.terminal import tracked

    with _usage():
        problems = _problems(arguments.packages)
        device, arch = targets(arguments.device)[-1]
        runs = _served(
            [
                (run, request_of(run[0], run[1], device, arch))
                for run in _bench_runs(problems, device, arguments)
            ],
            _with_variants([(device, arch)], problems, arguments),
        )
    _obtain_all((problem, request, name) for (problem, _, _), request, names in runs for name in names)
    given = {} if arguments.seconds is None else {"seconds": arguments.seconds}
    words = {"compiled": arguments.compile, "command": arguments.command_line, **given}
    for (problem, case, in_table), request, names in tracked(runs, "timing"):
        variants = {name: partial(use_variant, problem.name, request, name) for name in names if name}
        if in_table:
            limit = arguments.limit
            yield bench_line(problem, case, device, limit_seconds=limit, variants=variants, **words)
        else:
            yield bench(problem, case, device, variants=variants, **words)


_Run = tuple["Problem", "Case", bool]


def _served(
    runs: Sequence[tuple[_Run, Request]], named: Sequence[tuple[tuple[str, str], Problem, str]]
) -> list[tuple[_Run, Request, list[str]]]:
    """Each run with the variants of its problem among ``named`` that serve it, ``""`` for the chosen one.

    A run that none of them serves is left out, and said so on standard error. Raises
    ``ValueError`` when that is every run, and where no variant was named and none serves.
    """
    from kernels.evaluate.check import chosen

    kept: list[tuple[_Run, Request, list[str]]] = []
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


def _bench_runs(problems: Sequence[Problem], device: str, arguments: argparse.Namespace) -> list[_Run]:
    """What is timed, and whether as a line of its problem's table. Raises ``ValueError``."""
    from kernels.evaluate.bench import DEFAULT_SHAPES, case_of

    chosen = arguments.shape or arguments.dtype
    shapes = arguments.shapes or ("all" if device == "cuda" and not chosen else "default")
    if arguments.shape and shapes != "default":
        raise ValueError(f"--shape names shapes of its own; --shapes {shapes} does not go with it")
    runs: list[_Run] = []
    if shapes in ("default", "all"):
        changes = [dict(pairs) for pairs in arguments.shape] if arguments.shape else DEFAULT_SHAPES
        runs += [
            (problem, case_of(problem, change, arguments.dtype), False)
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


def _startup_results(arguments: argparse.Namespace) -> list:
    from kernels import startup
    from kernels.device import cuda_arch_name
    from kernels.evaluate.check import targets
    from kernels.report.terminal import tracked

    with _usage():
        names = [name for name in arguments.packages if name != "jit"] or [startup.PACKAGE]
        _problems(names)
        arch = cuda_arch_name(arguments.arch) if arguments.arch else ""
        device = "cuda" if arch else targets(arguments.device)[-1][0]
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


def _is_pair(arguments: argparse.Namespace) -> bool:
    """Whether two files were named; the judge then does in its own processes what the verb says."""
    if not (arguments.reference or arguments.candidate):
        return False
    if arguments.variant:
        raise UsageError(f"--variant {arguments.variant[0]} is of a PACKAGE; a candidate's file has none")
    if arguments.packages:
        raise UsageError(
            "give PACKAGE names or a pair of files, not both; evaluate takes PACKAGE --candidate FILE"
        )
    return True


# -- what several verbs need -----------------------------------------------------------------


class UsageError(Exception):
    """The command line asks for something that is not there."""


@contextmanager
def _usage() -> Iterator[None]:
    """What is wrong with the words typed, told from a ValueError of the work itself."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def _problems(names: Sequence[str]) -> list[Problem]:
    """The problems called ``names``, or all there are. Raises ``ValueError``."""
    from kernels.discover import problem_packages
    from kernels.problem import find_problem

    found = list(names) or problem_packages()
    if not found:
        raise ValueError("no problem package beside kernels or in this folder")
    return [find_problem(name) for name in found]


def _requests(default: Request, arguments: argparse.Namespace) -> list[Request]:
    """``default`` with every combination of the dtypes, head_dims and group sizes asked for."""
    return [
        replace(default, dtype=dtype, head_dim=head_dim, group_size=group_size)
        for dtype in arguments.dtype or [default.dtype]
        for head_dim in arguments.head_dim or [default.head_dim]
        for group_size in arguments.group_size or [default.group_size]
    ]


def _with_variants(
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


def _use(trial: Trial) -> None:
    """Have the variant that the trial asks for by name run, from now on."""
    if trial.asked:
        from kernels.jit.operator import use_variant

        use_variant(trial.problem.name, trial.request, trial.asked)


def _spec(problem: Problem, request: Request, variant: str) -> KernelSpec:
    from kernels.evaluate.precision import fast_allowed
    from kernels.jit.spec import kernel_spec

    return kernel_spec(problem, request, variant, fast=fast_allowed(request.device))


def _obtain_all(wanted: Iterable[tuple[Problem, Request, str]]) -> list[Built]:
    """The bindings and the specialisations of ``wanted``, each once, built side by side."""
    from kernels.jit.load import obtain_all
    from kernels.jit.spec import binding_spec

    asked = list(wanted)
    bindings = [binding_spec(problem.name, problem.binding) for problem, _, _ in asked]
    return obtain_all(list(dict.fromkeys(bindings + [_spec(*each) for each in asked])))
