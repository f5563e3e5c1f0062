"""``doctor``: say what a build needs, what is there, and how to mend the rest."""

from __future__ import annotations

import argparse
from typing import Any

from kernels.cli.usage import UsageError

__all__ = ["add_to"]


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's commands."""
    verb = verbs.add_parser("doctor", help="say what a build needs, what is there, and how to mend the rest")
    verb.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
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
