"""``cache``: list, verify, prune or empty the cache of compiled kernels."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.jit.cache import Entry, Pruned

__all__ = ["add_to"]


def add_to(verbs: Any) -> None:
    """Add the verb to the parser's commands."""
    cache = verbs.add_parser("cache", help="list, verify or empty the cache of compiled kernels")
    actions = cache.add_subparsers(title="actions", metavar="ACTION", required=True)
    actions.add_parser("list", help="every entry, its size, age and state").set_defaults(run=_list)
    actions.add_parser("verify", help="exit code 1 if an entry is damaged").set_defaults(run=_verify)
    prune = actions.add_parser("prune", help="remove damaged entries, old ones, and what killed builds left")
    prune.add_argument("--days", type=float, metavar="N", help="also remove entries older than N days")
    prune.add_argument(
        "--megabytes", type=float, metavar="N", help="also remove the oldest until N MB remain"
    )
    prune.set_defaults(run=_prune)
    actions.add_parser("clear", help="remove every entry").set_defaults(run=_clear)


def _list(arguments: argparse.Namespace) -> int:
    _show_entries()
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    return 0 if all(entry.ok for entry in _show_entries()) else 1


def _prune(arguments: argparse.Namespace) -> int:
    from kernels.jit import cache

    _show_removed(
        cache.prune(
            older_than_s=None if arguments.days is None else arguments.days * 86_400,
            over_bytes=None if arguments.megabytes is None else int(arguments.megabytes * 1e6),
        )
    )
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    from kernels.jit import cache

    _show_removed(cache.clear())
    return 0


def _show_entries() -> list[Entry]:
    from rich.console import Console

    from kernels.jit import cache
    from kernels.report.terminal import cache_report

    entries = cache.entries()
    cache_report(Console(), str(cache.cache_directory()), entries)
    return entries


def _show_removed(pruned: Pruned) -> None:
    from rich.console import Console

    from kernels.jit import cache
    from kernels.report.terminal import pruned_report

    pruned_report(Console(), str(cache.cache_directory()), pruned)
