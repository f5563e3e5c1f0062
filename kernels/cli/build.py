"""``build``: compile ahead, and print registers, shared memory and spills."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernels.cli.arguments import add_packages, add_pair, add_variant, is_pair
from kernels.cli.evaluate import build_pair
from kernels.cli.subjects import find_problems, obtain_all, spec_of, with_variants
from kernels.cli.usage import usage

if TYPE_CHECKING:
    from kernels.problem import Problem, Request

__all__ = ["add_to"]


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's commands."""
    verb = verbs.add_parser("build", help="compile ahead and print registers, shared memory and spills")
    add_packages(verb)
    verb.add_argument(
        "--arch",
        nargs="+",
        metavar="ARCH",
        help="CUDA architectures, such as 9.0a; needs no GPU (default: this machine's)",
    )
    verb.add_argument(
        "--dtype", nargs="+", metavar="DTYPE", help="such as float16 (default: the default inputs')"
    )
    verb.add_argument("--head-dim", nargs="+", type=int, metavar="D", help="(default: the default inputs')")
    verb.add_argument("--group-size", nargs="+", type=int, metavar="G", help="(default: the default inputs')")
    add_variant(verb)
    add_pair(verb)
    verb.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if is_pair(arguments):
        return build_pair(arguments)
    from rich.console import Console

    from kernels.device import cuda_arch_name
    from kernels.evaluate.check import targets
    from kernels.report.terminal import build_report

    with usage():
        problems = find_problems(arguments.packages)
        archs = arguments.arch
        places = [("cuda", cuda_arch_name(arch)) for arch in archs] if archs else targets(None)
        requests = [
            (problem, request, variant)
            for place, problem, variant in with_variants(places, problems, arguments)
            for asked in _requests(problem.default_request(*place), arguments)
            for request in _lengths(problem, asked, variant)
        ]
    build_report(Console(), obtain_all(requests))
    return 0


def _requests(default: Request, arguments: argparse.Namespace) -> list[Request]:
    """``default`` with every combination of the dtypes, head_dims and group sizes asked for."""
    return [
        replace(default, dtype=dtype, head_dim=head_dim, group_size=group_size)
        for dtype in arguments.dtype or [default.dtype]
        for head_dim in arguments.head_dim or [default.head_dim]
        for group_size in arguments.group_size or [default.group_size]
    ]


def _lengths(problem: Problem, request: Request, variant: str) -> list[Request]:
    """``request`` for short sequences and for long ones, as far as there is a kernel for them.

    Raises ``ValueError`` where there is one for neither, before anything is built.
    """
    from kernels.problem import NARROW_HEAD_DIM

    both = [request]
    if request.device == "cuda" and request.head_dim <= NARROW_HEAD_DIM:
        both.append(replace(request, long=True))
    found, errors = [], []
    for each in both:
        try:
            spec_of(problem, each, variant)
        except ValueError as error:
            errors.append(error)
        else:
            found.append(each)
    if not found:
        raise errors[0]
    return found
