"""The command line, ``python -m kernels``: parse, delegate, exit.

Each verb is a module of its name, with what it parses and what it does; ``evaluate``
has the judge's verbs, ``verify`` and ``report``. ``arguments``, ``subjects``
and ``files`` are what several verbs share: the words, and the problems, kernels and
files that they name.

Exit codes: 0 done, 1 a check failed or a build did, 2 the command line is wrong.
Nothing heavy is imported before its verb runs, so that ``--help`` and ``doctor``
work where torch does not.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from kernels.cli import bench, build, cache, check, doctor, evaluate
from kernels.cli.usage import UsageError
from kernels.errors import KernelsError

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
    for module in (check, doctor, build, cache, bench, evaluate):
        module.add_to(verbs)
    return parser
