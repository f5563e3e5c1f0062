"""The verbs that judge: ``evaluate`` and its parts, ``verify`` and ``report``.

The exit code is 0 only for a pass. ``check``, ``bench`` and ``build`` of two files are
parts of ``evaluate`` too: the ``*_pair`` functions.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.cli.arguments import PAIR_HELP, above_zero, add_pair, positive, whole
from kernels.cli.files import check_writable, write, write_json
from kernels.cli.usage import UsageError, usage

if TYPE_CHECKING:
    from kernels.evaluate.evaluation import Evaluation
    from kernels.evaluate.options import Options
    from kernels.evaluate.subject import Target

__all__ = ["add_to", "bench_pair", "build_pair", "check_pair"]

_LOG_SECONDS = 2.0

# What each verb measures beside correctness; "check" and "build" nothing at all.
_PARTS = {
    "evaluate": ("timing", "memory", "launches", "roofline", "counters", "code", "lint"),
    "check": ("lint",),
    "bench": ("timing",),
    "build": (),
    "profile": ("timing", "launches", "counters"),
    "sass": ("code",),
    "roofline": ("timing", "roofline"),
}


def add_to(verbs: Any) -> None:
    """Add the judge's verbs to the parser's commands."""
    for name, words in (
        ("evaluate", "judge a candidate: correctness, times, memory, launches, roofline, lint"),
        ("profile", "the kernels of one call: launches and hardware counters"),
        ("sass", "the machine code of a candidate: registers, spills, tensor cores"),
        ("roofline", "the time of a call against what this machine can do"),
    ):
        verb = verbs.add_parser(name, help=words)
        add_pair(verb, package=True)
        _add_options(verb, trials=5 if name == "evaluate" else 0)
        verb.set_defaults(run=_evaluate, verb=name)
    specs = verbs.add_parser("specs", help="what a subject is: inputs, parameters, operations, bytes")
    add_pair(specs, package=True)
    _add_options(specs)
    specs.set_defaults(run=_specs, verb="specs")
    lint = verbs.add_parser("lint", help="read a candidate's sources; exit code 1 for a violation")
    lint.add_argument("paths", nargs="*", metavar="FILE_OR_PACKAGE")
    lint.add_argument("--candidate", metavar="FILE", help=PAIR_HELP)
    lint.add_argument("--reference", metavar="FILE", help=argparse.SUPPRESS)
    lint.add_argument("--json", metavar="OUT", help="write the findings as JSON")
    lint.set_defaults(run=_lint, verb="lint")
    verify = verbs.add_parser("verify", help="recompute every figure and the status of a JSON report")
    verify.add_argument("reports", nargs="+", metavar="REPORT.json")
    verify.set_defaults(run=_verify)
    report = verbs.add_parser("report", help="show JSON reports again, or several beside each other")
    report.add_argument("reports", nargs="+", metavar="REPORT.json")
    report.add_argument("--html", metavar="OUT", help="write a page instead")
    report.set_defaults(run=_report)


def _add_options(verb: argparse.ArgumentParser, trials: int = 5) -> None:
    verb.add_argument("--device", choices=("cpu", "cuda"), help="(default: cuda where there is a GPU)")
    words = f"fresh inputs (default: {trials or 'none, nor the cases of a package'})"
    verb.add_argument("--trials", type=positive, default=trials, metavar="N", help=words)
    verb.add_argument(
        "--seconds", type=above_zero, default=0.5, metavar="S", help="of samples for each time (default: 0.5)"
    )
    verb.add_argument("--no-compile", action="store_true", help="leave out torch.compile of the reference")
    verb.add_argument(
        "--time-limit",
        type=above_zero,
        default=180.0,
        metavar="S",
        help="for one step of the candidate, which may hold a compilation (default: 180)",
    )
    verb.add_argument("--seed", type=whole, metavar="N", help="repeat the draws of another evaluation")
    verb.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: all there are)")
    verb.add_argument(
        "--memory-limit",
        type=above_zero,
        metavar="GB",
        help="of the candidate on the CPU (default: 9/10 of what is free)",
    )
    verb.add_argument(
        "--sanitizer",
        nargs="*",
        choices=("memcheck", "racecheck", "initcheck", "synccheck"),
        metavar="TOOL",
        help="run compute-sanitizer too (default tool: memcheck)",
    )
    verb.add_argument("--json", metavar="OUT", help="write the report as JSON")
    verb.add_argument("--html", metavar="OUT", help="write the report as one page")


# -- the verbs ---------------------------------------------------------------------------------


def check_pair(arguments: argparse.Namespace) -> int:
    """``check --reference FILE --candidate FILE``: correctness alone."""
    return _judge(arguments, "check")


def bench_pair(arguments: argparse.Namespace) -> int:
    """``bench --reference FILE --candidate FILE``: correctness, then times."""
    return _judge(arguments, "bench")


def build_pair(arguments: argparse.Namespace) -> int:
    """``build --reference FILE --candidate FILE``: one trial, which builds what there is to build."""
    return _judge(arguments, "build", trials=0)


def _evaluate(arguments: argparse.Namespace) -> int:
    return _judge(arguments, arguments.verb)


def _judge(arguments: argparse.Namespace, verb: str, **changes: Any) -> int:
    from kernels.evaluate.judge import evaluate, unusable
    from kernels.evaluate.result import as_json
    from kernels.evaluate.subject import Unusable

    _check_files(arguments)
    options = _options(arguments, _PARTS[verb], **changes)
    try:
        target = _target(arguments)
    except Unusable as error:
        found: Evaluation = unusable(error, options)
    else:
        with _progress() as progress:
            found = evaluate(target, options, progress)
    document = as_json(found)
    _show(document, arguments)
    return 0 if found.status == "PASS" else 1


def _show(document: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Write the files asked for, then print the report; what could not be written is raised last."""
    from rich.console import Console

    from kernels.report.evaluation import show

    json_path, html_path = getattr(arguments, "json", None), getattr(arguments, "html", None)
    if json_path is True:  # bench's own --json needs no path
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    failures: list[UsageError] = []
    if json_path:
        with _collected(failures):
            write_json(json_path, document)
    if html_path:
        from kernels.report.html import page

        with _collected(failures):
            write(html_path, page(document))
    show(Console(), document)
    if failures:
        raise UsageError("\nerror: ".join(map(str, failures)))


@contextmanager
def _collected(failures: list[UsageError]) -> Iterator[None]:
    """A file that cannot be written any more waits its turn: what was found out comes first."""
    try:
        yield
    except UsageError as error:
        failures.append(error)


def _check_files(arguments: argparse.Namespace) -> None:
    """Raise :class:`UsageError` unless the files that the report goes to can be written."""
    paths = (getattr(arguments, name, None) for name in ("json", "html"))
    check_writable(*(path for path in paths if isinstance(path, str)))


def _specs(arguments: argparse.Namespace) -> int:
    from kernels.evaluate.specs import SpecsFailed, specs

    _check_files(arguments)
    options = _options(arguments, ())
    try:
        found = specs(_target(arguments, candidate_needed=False), options)
    except SpecsFailed as error:
        print(f"{error.status}: {error}")
        return 1
    for name, value in found.items():
        print(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    if arguments.json:
        write_json(arguments.json, found)
    return 0


def _lint(arguments: argparse.Namespace) -> int:
    from kernels.evaluate.lint import lint_sources
    from kernels.evaluate.result import as_json
    from kernels.evaluate.subject import sources_of

    _check_files(arguments)
    paths = [*arguments.paths, *filter(None, [arguments.candidate])]
    if not paths:
        raise UsageError("give a FILE or a PACKAGE to read")
    with usage():
        sources = [source for path in paths for source in sources_of(path)]
    findings = lint_sources(sources)
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.severity}: {finding.rule}: {finding.message}")
    count = sum(finding.severity == "violation" for finding in findings)
    print(f"{count} violations, {len(findings) - count} notes in {len(sources)} files")
    if arguments.json:
        write_json(arguments.json, as_json(findings))
    return 1 if count else 0


def _verify(arguments: argparse.Namespace) -> int:
    from kernels.evaluate.verify import differences

    wrong = 0
    for path in arguments.reports:
        found = differences(_read(path))
        for difference in found:
            print(f"{path}: {difference}")
        if not found:
            print(f"{path}: every figure and the status follow from the samples")
        wrong += bool(found)
    return 1 if wrong else 0


def _report(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    _check_files(arguments)
    documents = [_read(path) for path in arguments.reports]
    if arguments.html:
        from kernels.report import compare, html

        page = html.page(documents[0]) if len(documents) == 1 else compare.page(documents)
        write(arguments.html, page)
        return 0
    if len(documents) == 1:
        from kernels.report.evaluation import show

        show(Console(), documents[0])
    else:
        from kernels.report.compare import show as show_several

        show_several(Console(), documents)
    return 0


# -- what they share ---------------------------------------------------------------------------


def _target(arguments: argparse.Namespace, *, candidate_needed: bool = True) -> Target:
    from kernels.evaluate.subject import find_target

    package = getattr(arguments, "package", "") or ""
    with usage():
        return find_target(
            package, arguments.reference, arguments.candidate, candidate_needed=candidate_needed
        )


def _options(arguments: argparse.Namespace, parts: Sequence[str], **changes: Any) -> Options:
    from kernels.evaluate.options import Options

    given = vars(arguments)
    seed = given.get("seed")
    words: dict[str, Any] = {
        "device": _device(given.get("device")),
        "trials": given.get("trials", 5),
        "seconds": given.get("seconds") or 0.5,
        "compile": bool(given.get("compile")) if "no_compile" not in given else not given["no_compile"],
        "time_limit": given.get("time_limit", 180.0),
        "seed": secrets.randbelow(2**53) if seed is None else seed,
        "parts": tuple(parts),
        "command": tuple(arguments.command_line),
    }
    if given.get("threads"):
        words["threads"] = given["threads"]
    if given.get("memory_limit"):
        words["memory_bytes"] = int(given["memory_limit"] * 1e9)
    if given.get("sanitizer") is not None:
        words["sanitizer"] = tuple(given["sanitizer"]) or ("memcheck",)
    return Options(**{**words, **changes})


def _device(asked: str | None) -> str:
    from kernels.evaluate.check import targets

    with usage():
        return targets(asked)[-1][0]


def _read(path: str) -> Mapping[str, Any]:
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or "status" not in document or "schema" not in document:
        raise UsageError(f"{path} is no report of python -m kernels evaluate")
    return document


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says on standard error what is being done: a line that changes, or a log where that is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    with console.status("starting") as status:
        yield lambda words: status.update(words)


def _lines() -> Callable[[str], None]:
    """Prints what it is told with the seconds since now, a line in two seconds at most."""
    begun = time.monotonic()
    printed = -_LOG_SECONDS

    def line(words: str) -> None:
        nonlocal printed
        since = time.monotonic() - begun
        if since - printed >= _LOG_SECONDS:
            print(f"[{since:.0f} s] {words}", file=sys.stderr, flush=True)
            printed = since

    return line
