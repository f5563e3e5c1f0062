"""What ``bench`` prints: every time of a shape, a package's table, and what a first call costs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kernels.evaluate.result import BenchResult, BenchRow, StartupResult, Timing
from kernels.report.tables import (
    NOTHING,
    count_text,
    duration,
    error_text,
    new_table,
    shape_text,
    show_environment,
    stacked,
)

__all__ = ["bench_report", "bench_table", "startup_report"]

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
    table = new_table(title=f"{result.problem}  {shape_text(result.shape)}  {result.dtype}")
    table.add_column(Text("way"), overflow="fold", min_width=10)
    table.add_column(stacked("error", "TFLOP/s"), justify="right", no_wrap=True)
    for _, first, second in columns:
        table.add_column(stacked(first, second), justify="right", no_wrap=True)
    table.add_column(stacked("times", "ModelNew"), justify="right", no_wrap=True)

    ours = next((row for row in result.rows if row.name.startswith("ModelNew")), None)
    for row in result.rows:
        ratio = NOTHING
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
        quality = stacked(error_text(row.error), _tflops(row.tflops))
        table.add_row(Text(row.name, style), quality, *map(_timing, times), Text(ratio, style))
    console.print(table)
    console.print()
    for row in result.rows:
        if row.note:
            console.print(Text(f"{row.name}: {row.note}"))
    _bench_legend(console, result, on_cuda)
    if ours is not None and ours.tflops is not None:
        work = f"{count_text(result.flops, 'FLOP')} and at least {count_text(result.least_bytes, 'B')} a call"
        per_second = 1e6 / getattr(ours, ours.tflops_from).median_us
        moved = count_text(result.least_bytes * per_second, "B/s")
        console.print(
            Text(f"{work}; {ours.name}: {count_text(result.flops * per_second, 'FLOP/s')}, {moved}")
        )
    show_environment(console, result.environment, result.precision)


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
    show_environment(console, results[-1].environment, results[-1].precision)


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
    table = new_table()
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
                Text(NOTHING if lead is None else _ratio(lead.ratio), "bold")
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
        return Text(NOTHING)
    mark = "" if row.accurate else "*"
    time = duration(getattr(row, row.tflops_from).median_us) + (
        " e" if row.tflops_from == "eager_cold" else ""
    )
    style = "" if row.accurate else "yellow"
    return Text.assemble(
        (_tflops(row.tflops) + mark, style), "\n", time, "\n", (error_text(row.error), "dim")
    )


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
        return NOTHING
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _timing(timing: Timing | None) -> Text:
    if timing is None:
        return Text(NOTHING)
    value, unit = duration(timing.median_us).split()
    scale = {"us": 1.0, "ms": 1e3, "s": 1e6}[unit]
    digits = len(value.partition(".")[2])
    low, high = timing.low_us / scale, timing.high_us / scale
    return stacked(f"{value} {unit}", f"{low:.{digits}f}-{high:.{digits}f}")


def startup_report(console: Console, result: StartupResult) -> None:
    """What a first call costs, beside the usual way to the same kernel."""
    table = new_table(title=f"{result.problem}: {result.what}")
    table.add_column("way", overflow="fold")
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("fastest-slowest", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    for row in result.rows:
        spread = (
            f"{duration(min(row.samples) * 1e6)} - {duration(max(row.samples) * 1e6)}"
            if row.samples
            else NOTHING
        )
        table.add_row(Text(row.name), duration(row.seconds * 1e6), spread, str(len(row.samples)))
    console.print(table)
    console.print()
    for row in result.rows:
        if row.note:
            console.print(Text(f"{row.name}: {row.note}"))
    show_environment(console, result.environment)
