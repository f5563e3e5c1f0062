"""Results as tables for a terminal, readable from 80 columns up.

Every cell is a ``Text``: names and messages hold brackets that rich would otherwise
take for markup. On a wide terminal a check is one line; on a narrow one, two.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from kernels.evaluate.result import BenchResult, BenchRow, CheckRow, Environment, StartupResult, Timing

if TYPE_CHECKING:
    from kernels.jit.build import Built
    from kernels.jit.cache import Entry, Pruned
    from kernels.toolchain import Check

__all__ = [
    "bench_report",
    "bench_table",
    "build_report",
    "cache_report",
    "check_report",
    "doctor_report",
    "duration",
    "pruned_report",
    "shape_text",
    "startup_report",
    "tracked",
]

_WIDE = 112
_NOTHING = "-"


_T = TypeVar("_T")


def tracked(items: Sequence[_T], doing: str) -> Iterable[_T]:
    """``items``, with a progress bar on standard error while a terminal shows it."""
    console = Console(stderr=True)
    return track(items, doing, console=console, transient=True, disable=not console.is_terminal)


# -- words for values ----------------------------------------------------------------------


def shape_text(shape: Mapping[str, int]) -> str:
    """``B2 T80 H8/2 D32``: batch, length (rows/keys where they differ), heads (query/kv), head_dim.

    A dimension it has no letter for is written out: ``depth=3``.
    """
    rest = dict(shape)
    parts = []
    if "batch" in rest:
        parts.append(f"B{rest.pop('batch')}")
    for letter, first, second in (("T", "seqlen_q", "seqlen_k"), ("H", "num_heads", "num_kv_heads")):
        if first in rest:
            value, other = rest.pop(first), rest.pop(second, None)
            hide_second = other is None or (letter == "T" and other == value)
            parts.append(f"{letter}{value}" if hide_second else f"{letter}{value}/{other}")
        elif letter == "T" and "seqlen" in rest:
            parts.append(f"T{rest.pop('seqlen')}")
    if "head_dim" in rest:
        parts.append(f"D{rest.pop('head_dim')}")
    parts.extend(f"{name}={value}" for name, value in rest.items())
    return " ".join(parts)


def duration(microseconds: float | None) -> str:
    """Three digits and a unit: ``3.02 us``, ``71.4 ms``, ``2.50 s``."""
    if microseconds is None or math.isnan(microseconds):
        return _NOTHING
    for limit, unit, divisor in ((1e3, "us", 1.0), (1e6, "ms", 1e3), (math.inf, "s", 1e6)):
        if microseconds < limit * 0.9995:
            value = microseconds / divisor
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable: the last limit is infinite")


def _error(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1e}"


def _count(number: float, unit: str) -> str:
    """``6.6 MFLOP``, ``410 kB``."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:.3g} P{unit}"


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


def _table(*, title: str = "") -> Table:
    return Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
        header_style="bold",
    )


def _stacked(first: str, second: str, style: str = "") -> Text:
    """Two lines in one cell, the second one dim."""
    return Text.assemble((first, style), "\n", (second, "dim"))


# -- check -----------------------------------------------------------------------------------


def check_report(console: Console, rows: Sequence[CheckRow]) -> None:
    """The table of ``check``, then the reason of each failure in full."""
    wide = console.width >= _WIDE
    table = _table()
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
            table.add_column(_stacked(first, second), justify=justify, no_wrap=first != "shape")  # type: ignore[arg-type]
    table.add_column("result", no_wrap=True)

    failures: list[CheckRow] = []
    for row in rows:
        if not row.passed:
            failures.append(row)
        verdict = Text("PASS", "green") if row.passed else Text(f"FAIL {len(failures)}", "bold red")
        to_reference = _error(row.against_reference.max_abs if row.against_reference else None)
        to_oracle = _error(row.against_oracle.error if row.against_oracle else None)
        time = duration(row.time.median_us if row.time else None)
        reference = duration(row.reference_time.median_us if row.reference_time else None)
        variant, shape = row.variant or _NOTHING, shape_text(row.shape)
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
                _stacked(row.problem, f"{row.device}, {variant}"),
                _stacked(shape, row.dtype),
                _stacked(to_reference, to_oracle),
                _stacked(time, reference),
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
    table = _table()
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
    table = _table()
    table.add_column("specialisation", overflow="fold")
    for header in ("registers", "static\nshared", "stack", "spills", "build"):
        table.add_column(header, justify="right", no_wrap=True)
    break_at = "<" if console.width >= _WIDE else "\n  <"
    for one in built:
        seconds = "cached" if one.cached else f"{one.seconds:.1f} s"
        values = (value if key == "dtype" else f"{key} {value}" for key, value in one.spec.params)
        name = _stacked(f"{one.spec.problem}, {one.spec.variant}", ", ".join((one.spec.arch, *values)))
        if len(one.resources) != 1:
            table.add_row(name, *[_NOTHING] * 4, seconds)
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
    table = _table()
    table.add_column("entry", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for entry in entries:
        state = Text("whole", "green") if entry.ok else Text(entry.problem, "bold red")
        table.add_row(Text(entry.name), _count(entry.bytes, "B"), _age(entry.age_s), state)
    if entries:
        console.print(table)
        console.print()
    total = _count(sum(entry.bytes for entry in entries), "B")
    console.print(Text(f"{len(entries)} entries, {total}, in {directory}"), soft_wrap=True)


def pruned_report(console: Console, directory: str, pruned: Pruned) -> None:
    """What a prune or a clear removed."""
    words = f"removed {pruned.entries} entries ({_count(pruned.bytes, 'B')})"
    if pruned.stale_builds:
        words += f" and what {pruned.stale_builds} killed builds had left"
    console.print(Text(f"{words} from {directory}"), soft_wrap=True)


# -- bench -----------------------------------------------------------------------------------


# How a time of a BenchRow is called in prose.
_TIME_WORDS = {
    "graph_cold": "graph replay, cold L2",
    "eager_cold": "eager call, cold L2",
    "eager": "eager calls, L2 as they leave it",
}


def bench_report(console: Console, result: BenchResult) -> None:
    """Every way to the result with its times; the quartiles stand below each median."""
    on_cuda = bool(result.environment.driver)
    columns = _CUDA_TIMES if on_cuda else (("eager", "time", "quartiles"),)
    table = _table(title=f"{result.problem}  {shape_text(result.shape)}  {result.dtype}")
    table.add_column(Text("way"), overflow="fold", min_width=10)
    table.add_column(_stacked("error", "TFLOP/s"), justify="right", no_wrap=True)
    for _, first, second in columns:
        table.add_column(_stacked(first, second), justify="right", no_wrap=True)
    table.add_column(_stacked("times", "ModelNew"), justify="right", no_wrap=True)

    ours = next((row for row in result.rows if row.name.startswith("ModelNew")), None)
    for row in result.rows:
        ratio = _NOTHING
        # Against the same kind of time; a route that no graph holds is compared by its eager time.
        for kind in ("graph_cold", "graph", "eager"):
            mine, theirs = getattr(ours, kind, None), getattr(row, kind)
            if mine and theirs:
                ratio = _ratio(theirs.median_us / mine.median_us)
                break
        times = [getattr(row, kind) for kind, _, _ in columns]
        if on_cuda and row.eager_cold and not row.graph_cold:
            times[1] = row.eager_cold
        style = "bold" if row is ours else ""
        quality = _stacked(_error(row.error), _tflops(row.tflops))
        table.add_row(Text(row.name, style), quality, *map(_timing, times), Text(ratio, style))
    console.print(table)
    console.print()
    for row in result.rows:
        if row.note:
            console.print(Text(f"{row.name}: {row.note}"))
    _bench_legend(console, result, on_cuda)
    if ours is not None and ours.tflops is not None:
        work = f"{_count(result.flops, 'FLOP')} and at least {_count(result.least_bytes, 'B')} a call"
        per_second = 1e6 / getattr(ours, ours.tflops_from).median_us
        moved = _count(result.least_bytes * per_second, "B/s")
        console.print(Text(f"{work}; {ours.name}: {_count(result.flops * per_second, 'FLOP/s')}, {moved}"))
    _environment(console, result.environment, result.precision)


# Fields of a BenchRow in the table of a CUDA device, with their headers.
_CUDA_TIMES = (
    ("graph", "graph", "warm L2"),
    ("graph_cold", "graph", "cold L2"),
    ("eager", "eager", "warm L2"),
    ("host", "host", "cost"),
)


def _bench_legend(console: Console, result: BenchResult, on_cuda: bool) -> None:
    """What the columns hold that their headers cannot say."""
    if not on_cuda:
        console.print(Text("error: the largest difference from float64; medians over quartiles"))
        return
    console.print(
        Text(
            "error: the largest difference from float64; medians over quartiles; warm: L2 as the calls leave "
            "it; host: until a call returns"
        )
    )
    by: dict[str, list[str]] = {}
    for row in result.rows:
        if row.tflops is not None:
            by.setdefault(row.tflops_from, []).append(row.name)
    for kind, names in by.items():
        which = "" if len(by) == 1 else f" of {', '.join(names)}"
        console.print(Text(f"TFLOP/s{which}: by {_TIME_WORDS[kind]}"))
    cold = [row.name for row in result.rows if row.eager_cold and not row.graph_cold]
    if cold:
        console.print(Text(f"in the column graph, cold L2, an eager call on an idle GPU: {', '.join(cold)}"))


# Widths of the table's columns: the shape, a lead, a route; and what stands between two.
_SHAPE_WIDTH, _LEAD_WIDTH, _ROUTE_WIDTH, _GAP = 13, 9, 10, 3


def bench_table(console: Console, results: Sequence[BenchResult]) -> None:
    """The lines of one problem's table, a route a column; as many blocks as the width needs.

    A cell has TFLOP/s over the median time over the error against float64.
    """
    names = list(dict.fromkeys(row.name for result in results for row in result.rows))
    fixed = _SHAPE_WIDTH + 2 * (_GAP + _LEAD_WIDTH)
    fitting = max(1, (console.width - fixed) // (_ROUTE_WIDTH + _GAP))
    console.print(
        Text(f"{results[0].problem}  TFLOP/s, median time of a call, error to float64", style="bold")
    )
    for start in range(0, len(names), fitting):
        _table_block(console, results, names[start : start + fitting], start == 0)
    _table_legend(console, results)
    for name in names:
        _without_time(console, name, results)
    _environment(console, results[-1].environment, results[-1].precision)


def _without_time(console: Console, name: str, results: Sequence[BenchResult]) -> None:
    """Every note on the route ``name``, each with the shapes it is about."""
    places: dict[str, list[str]] = {}
    for result in results:
        for row in result.rows:
            if row.name == name and row.note:
                places.setdefault(row.note, []).append(f"{shape_text(result.shape)} {result.dtype}")
    for note, where in places.items():
        which = ", ".join(where) if len(where) <= 2 else f"{len(where)} of {len(results)} shapes"
        console.print(Text(f"{name}, {which}: {note}"))


def _table_block(
    console: Console, results: Sequence[BenchResult], names: Sequence[str], with_leads: bool
) -> None:
    table = _table()
    table.add_column("shape", no_wrap=True, min_width=_SHAPE_WIDTH)
    if with_leads:
        for what in ("accurate", "of all"):
            header = Text(f"ModelNew over fastest {what}")
            table.add_column(header, justify="right", width=_LEAD_WIDTH)
    for name in names:
        table.add_column(Text(name), justify="right", width=_ROUTE_WIDTH, overflow="fold")
    for result in results:
        rows = {row.name: row for row in result.rows}
        cells = [_shape_lines(result)]
        if with_leads:
            cells += [
                Text(_NOTHING if lead is None else _ratio(lead.ratio), "bold")
                for lead in (result.lead_over_accurate, result.lead_over_fastest)
            ]
        table.add_row(*cells, *(_route_lines(rows.get(name)) for name in names))
    console.print(table)
    console.print()


def _shape_lines(result: BenchResult) -> Text:
    words = shape_text(result.shape).split()
    first, rest = " ".join(words[:2]), " ".join(words[2:])
    return Text.assemble((first, "bold"), "\n", rest, "\n", (result.dtype, "dim"))


def _route_lines(row: BenchRow | None) -> Text:
    if row is None or not row.tflops_from:
        return Text(_NOTHING)
    mark = "" if row.accurate else "*"
    time = duration(getattr(row, row.tflops_from).median_us) + (
        " e" if row.tflops_from == "eager_cold" else ""
    )
    style = "" if row.accurate else "yellow"
    return Text.assemble((_tflops(row.tflops) + mark, style), "\n", time, "\n", (_error(row.error), "dim"))


def _table_legend(console: Console, results: Sequence[BenchResult]) -> None:
    """What is in a cell, and what the errors are about."""
    kinds = {row.tflops_from for result in results for row in result.rows}
    if "graph_cold" in kinds:
        console.print(Text("time: a CUDA graph replay of one call after an L2 flush"))
    if "eager_cold" in kinds:
        console.print(
            Text(
                "e: an eager call on an idle GPU after an L2 flush; no graph holds it, or it takes over 50 ms"
            )
        )
    if "eager" in kinds:
        console.print(Text("time: a call on the CPU"))
    console.print(
        Text(
            "leads: the peer's time over the first ModelNew's; accurate: every checked element within the "
            "case's atol + rtol * |float64|; *: not accurate"
        )
    )
    checked: dict[str, int] = {}
    for result in results:
        checked[result.checked] = checked.get(result.checked, 0) + 1
    for words, count in checked.items():
        console.print(Text(f"checked at {count} of {len(results)} shapes: {words}"))
    console.print(Text("the reference is a loop and not in this table"))


def _tflops(value: float | None) -> str:
    """``226``, ``18.7``, ``0.038``."""
    if value is None:
        return _NOTHING
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _timing(timing: Timing | None) -> Text:
    if timing is None:
        return Text(_NOTHING)
    value, unit = duration(timing.median_us).split()
    scale = {"us": 1.0, "ms": 1e3, "s": 1e6}[unit]
    digits = len(value.partition(".")[2])
    low, high = timing.low_us / scale, timing.high_us / scale
    return _stacked(f"{value} {unit}", f"{low:.{digits}f}-{high:.{digits}f}")


def startup_report(console: Console, result: StartupResult) -> None:
    """What a first call costs, beside the usual way to the same kernel."""
    table = _table(title=f"{result.problem}: {result.what}")
    table.add_column("way", overflow="fold")
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("fastest-slowest", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    for row in result.rows:
        spread = (
            f"{duration(min(row.samples) * 1e6)} - {duration(max(row.samples) * 1e6)}"
            if row.samples
            else _NOTHING
        )
        table.add_row(Text(row.name), duration(row.seconds * 1e6), spread, str(len(row.samples)))
    console.print(table)
    console.print()
    for row in result.rows:
        if row.note:
            console.print(Text(f"{row.name}: {row.note}"))
    _environment(console, result.environment)


def _environment(console: Console, environment: Environment, precision: str = "") -> None:
    """Where, with what and when: a number without these means little."""
    parts = [environment.device]
    if environment.driver:
        parts.append(f"driver {environment.driver}")
    else:
        parts.append(f"{environment.threads} threads")
    parts.append(f"torch {environment.torch}")
    parts.append(f"Python {environment.python}")
    parts.append(environment.date)
    console.print(Text(", ".join(parts), "dim"))
    if precision:
        console.print(Text(f"torch's float32 matmul precision: {precision}"))
    if environment.command:
        console.print(Text(environment.command, "dim"), soft_wrap=True)
    console.print()
