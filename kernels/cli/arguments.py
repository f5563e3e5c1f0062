"""Arguments that several verbs take, and how one word is read."""

from __future__ import annotations

import argparse

from kernels.cli.usage import UsageError

__all__ = [
    "PAIR_HELP",
    "above_zero",
    "add_packages",
    "add_pair",
    "add_variant",
    "assignment",
    "is_pair",
    "positive",
    "whole",
]

PAIR_HELP = "a file in KernelBench form"


def add_packages(verb: argparse.ArgumentParser) -> None:
    """The problem packages to work on, none for all there are."""
    verb.add_argument(
        "packages", nargs="*", metavar="PACKAGE", help="problem packages (default: all there are)"
    )


def add_variant(verb: argparse.ArgumentParser) -> None:
    """The kernels that are asked for by name."""
    verb.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME",
        help="the kernel called NAME instead of the one that is chosen; repeat for more (default: "
        "KERNELS_VARIANT)",
    )


def add_pair(verb: argparse.ArgumentParser, *, package: bool = False) -> None:
    """The arguments that name a subject: a package, two files, or a package and a candidate."""
    if package:
        verb.add_argument("package", nargs="?", default="", metavar="PACKAGE", help="a problem package")
    verb.add_argument("--reference", default="", metavar="FILE", help=f"{PAIR_HELP}: Model and its inputs")
    verb.add_argument("--candidate", default="", metavar="FILE", help=f"{PAIR_HELP}: ModelNew")


def is_pair(arguments: argparse.Namespace) -> bool:
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


# -- one word ----------------------------------------------------------------------------------


def whole(text: str) -> int:
    """A whole number from 0."""
    return _whole_from(0, text)


def positive(text: str) -> int:
    """A whole number from 1."""
    return _whole_from(1, text)


def _whole_from(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is below {least}")
    return number


def above_zero(text: str) -> float:
    """A number above 0, of seconds or gigabytes."""
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def assignment(text: str) -> tuple[str, int]:
    """``NAME=VALUE`` with a whole number."""
    name, equals, value = text.partition("=")
    if not equals or not value.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a whole number")
    return name, int(value)
