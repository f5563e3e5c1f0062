"""What ``check``, ``doctor``, ``build`` and ``cache`` print, readable from 80 columns up.

On a wide terminal a check is one line; on a narrow one, two.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import track
from rich.text import Text

from kernels.evaluate.result import CheckRow
from kernels.report.tables import (
    NOTHING,
    WIDE,
    count_text,
    duration,
    error_text,
    new_table,
    shape_text,
    stacked,
)

if TYPE_CHECKING:
    from kernels.jit.build import Built
    from kernels.jit.cache import Entry, Pruned
    from kernels.toolchain import Check

__all__ = ["build_report", "cache_report", "check_report", "doctor_report", "pruned_report", "tracked"]

_T = TypeVar("_T")


def tracked(items: Sequence[_T], doing: str) -> Iterable[_T]:
    """``items``, with a progress bar on standard error while a terminal shows it."""
    console = Console(stderr=True)
    return track(items, doing, console=console, transient=True, disable=not console.is_terminal)


# -- check -----------------------------------------------------------------------------------


def check_report(console: Console, rows: Sequence[CheckRow]) -> None:
    """The table of ``check``, then the reason of each failure in full."""
    wide = console.width >= WIDE
    table = new_table()
    headers: list[tuple[str, str, str]] = [
        ("problem", "device, variant", "left"),
        ("shape", "dtype", "left"),
        ("error: reference", "float64", "right"),
        ("time", "reference", "right"),
    ]
    if wide:
        names = ("problem", "device", "variant", "shape", "dtype")
        for name in names:
            table.add_column(name, no_wrap=True)
        for name in ("error: reference", "error: float64", "time", "reference"):
            table.add_column(name, justify="right")
    else:
        for first, second, justify in headers:
            table.add_column(stacked(first, second), justify=justify, no_wrap=first != "shape")  # type: ignore[arg-type]
    table.add_column("result", no_wrap=True)

    failures: list[CheckRow] = []
    for row in rows:
        if not row.passed:
            failures.append(row)
        verdict = Text("PASS", "green") if row.passed else Text(f"FAIL {len(failures)}", "bold red")
        to_reference = error_text(row.against_reference.max_abs if row.against_reference else None)
        to_oracle = error_text(row.against_oracle.error if row.against_oracle else None)
        time = duration(row.time.median_us if row.time else None)
        reference = duration(row.reference_time.median_us if row.reference_time else None)
        variant, shape = row.variant or NOTHING, shape_text(row.shape)
        if wide:
            cells = (
                row.problem,
                row.device,
                variant,
                shape,
                row.dtype,
                to_reference,
                to_oracle,
                time,
                reference,
            )
            table.add_row(*map(Text, cells), verdict)
        else:
            table.add_row(
                stacked(row.problem, f"{row.device}, {variant}"),
                stacked(shape, row.dtype),
                stacked(to_reference, to_oracle),
                stacked(time, reference),
                verdict,
            )
    console.print(table)
    for number, row in enumerate(failures, 1):
        where = f"{row.problem} on {row.device}, {shape_text(row.shape)} {row.dtype} ({row.case}: {row.why})"
        console.print()
        console.print(Text.assemble((f"FAIL {number}", "bold red"), f"  {where}"))
        console.print(Text(row.reason), soft_wrap=True)
    console.print()
    passed = len(rows) - len(failures)
    console.print(Text(f"{passed} of {len(rows)} passed", "bold red" if failures else "bold green"))


# -- doctor ----------------------------------------------------------------------------------


def doctor_report(console: Console, checks: Sequence[Check]) -> None:
    """One line for each thing a build needs; what is wrong is followed by its fix."""
    table = new_table()
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        mark, style = (
            ("ok", "green") if check.ok else ("MISSING", "bold red") if check.required else ("note", "yellow")
        )
        found = Text(check.detail)
        if check.fix and not check.ok:
            found.append(f"\nfix: {check.fix}", "bold")
        table.add_row(Text(mark, style), Text(check.name), found)
    console.print(table)
    console.print()
    missing = sum(1 for check in checks if check.required and not check.ok)
    if missing:
        plural = "s" if missing > 1 else ""
        console.print(
            Text(f"kernels cannot be built here: {missing} required check{plural} failed", "bold red")
        )
    else:
        console.print(Text("kernels can be built here", "bold green"))


# -- build -----------------------------------------------------------------------------------


def build_report(console: Console, built: Sequence[Built]) -> None:
    """What the compiler reported of each specialisation: registers, shared memory, stack, spills.

    Shared memory is what a kernel declares; what its launch adds the compiler does not see.
    """
    table = new_table()
    table.add_column("specialisation", overflow="fold")
    for header in ("registers", "static\nshared", "stack", "spills", "build"):
        table.add_column(header, justify="right", no_wrap=True)
    break_at = "<" if console.width >= WIDE else "\n  <"
    for one in built:
        seconds = "cached" if one.cached else f"{one.seconds:.1f} s"
        values = (value if key == "dtype" else f"{key} {value}" for key, value in one.spec.params)
        name = stacked(f"{one.spec.problem}, {one.spec.variant}", ", ".join((one.spec.arch, *values)))
        if len(one.resources) != 1:
            table.add_row(name, *[NOTHING] * 4, seconds)
        for resources in one.resources:
            alone = len(one.resources) == 1
            spills = resources.spill_store_bytes + resources.spill_load_bytes
            table.add_row(
                name
                if alone
                else Text(f"  {_kernel_name(resources.kernel)}".replace("<", break_at, 1), "dim"),
                str(resources.registers),
                f"{resources.shared_bytes} B",
                f"{resources.stack_bytes} B",
                Text(f"{spills} B", "bold red" if spills else ""),
                seconds if alone else "",
            )
    console.print(table)


def _kernel_name(symbol: str) -> str:
    """``attention_kernel<float, 32, 4>`` of what the compiler calls it; the symbol itself when that fails."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:
        return symbol
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not address:
        return symbol
    text = ctypes.string_at(address).decode()
    libc = ctypes.CDLL(None)
    libc.free(ctypes.c_void_p(address))
    signature = text.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.sub(r"\w+::", "", signature.partition("(")[0]).replace("> >", ">>")


# -- cache -----------------------------------------------------------------------------------


def cache_report(console: Console, directory: str, entries: Sequence[Entry]) -> None:
    """What is in the cache, and what of it is damaged."""
    table = new_table()
    table.add_column("entry", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for entry in entries:
        state = Text("whole", "green") if entry.ok else Text(entry.problem, "bold red")
        table.add_row(Text(entry.name), count_text(entry.bytes, "B"), _age(entry.age_s), state)
    if entries:
        console.print(table)
        console.print()
    total = count_text(sum(entry.bytes for entry in entries), "B")
    console.print(Text(f"{len(entries)} entries, {total}, in {directory}"), soft_wrap=True)


def pruned_report(console: Console, directory: str, pruned: Pruned) -> None:
    """What a prune or a clear removed."""
    words = f"removed {pruned.entries} entries ({count_text(pruned.bytes, 'B')})"
    if pruned.stale_builds:
        words += f" and what {pruned.stale_builds} killed builds had left"
    console.print(Text(f"{words} from {directory}"), soft_wrap=True)


def _age(seconds: float) -> str:
    for limit, unit, divisor in (
        (90, "s", 1),
        (5400, "min", 60),
        (129_600, "h", 3600),
        (math.inf, "days", 86_400),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    raise AssertionError("unreachable: the last limit is infinite")
