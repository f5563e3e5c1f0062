"""The measures of an evaluation on a terminal, from memory to machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from kernels.report import words
from kernels.report.style import is_wide, section, stacked, styled, table
from kernels.report.summary import BAD, PLAIN, WARN

__all__ = ["show_measures"]

_STALLS_SHOWN = 4


def show_measures(console: Console, document: Mapping[str, Any]) -> None:
    """Print every measure that was taken; what was not is listed elsewhere with its reason."""
    for name, part in _PARTS.items():
        measured = document.get(name)
        if measured is not None:
            part(console, measured)


def _memory(console: Console, memory: Mapping[str, Any]) -> None:
    section(console, "Memory of one call")
    rows = table()
    for header in ("inputs", "outputs", "beyond both", "of it through torch", "of it direct"):
        rows.add_column(header, justify="right", no_wrap=True)
    names = ("input_bytes", "output_bytes", "extra_bytes", "allocator_bytes", "direct_bytes")
    rows.add_row(*(words.size(memory[name]) for name in names))
    console.print(rows)


def _launches(console: Console, launches: Sequence[Mapping[str, Any]]) -> None:
    section(console, "Launches in one call")
    if not launches:
        console.print(styled("none were seen", WARN))
        return
    rows = table()
    rows.add_column("kernel", overflow="fold")
    rows.add_column("launches", justify="right", no_wrap=True)
    rows.add_column(stacked("together, us", "each"), justify="right", no_wrap=True)
    rows.add_column(stacked("grid", "block"), justify="right", no_wrap=True)
    for one in launches:
        times = [words.number(each) or 0.0 for each in one["each_us"]]
        # The records of a call: with several launches of one kernel, `each_us` holds every one of them.
        mean = sum(times) / len(times) if times else None
        together = mean * one["count"] if mean is not None else None
        rows.add_row(
            Text(words.kernel_name(one["kernel"])),
            f"{one['count']:,}",
            stacked(words.microseconds(together), words.microseconds(mean)),
            stacked(_extent(one["grid"]), _extent(one["block"])),
        )
    console.print(rows)


def _extent(values: Sequence[int]) -> str:
    return " x ".join(map(str, values)) if values else words.NOTHING


def _roofline(console: Console, roofline: Mapping[str, Any]) -> None:
    section(console, "Against the limits of this machine")
    ceilings = roofline["ceilings"]
    rows = table()
    rows.add_column("", no_wrap=True)
    rows.add_column("this case", justify="right", no_wrap=True)
    rows.add_column("measured ceiling", justify="right", overflow="fold")
    rates = ", ".join(
        f"{words.printable(name)} {words.rate(value)}" for name, value in ceilings["tflops"].items()
    )
    rows.add_row("memory, GB/s", words.rate(roofline["achieved_gbps"]), words.rate(ceilings["gbps"]))
    rows.add_row("arithmetic, TFLOP/s", words.rate(roofline["achieved_tflops"]), rates or words.NOTHING)
    rows.add_row(
        "time of a call, us",
        words.microseconds(roofline["time_us"]),
        f"{words.microseconds(ceilings['launch_us'])} for a launch",
    )
    console.print(rows)
    work = (
        f"{words.amount(roofline['flops'], 'FLOP')} and at least {words.size(roofline['least_bytes'])} a call"
    )
    console.print(Text(f"{work}, counted by: {words.printable(roofline['counted_by'])}", "dim"))
    console.print(
        Text(
            f"{words.share(roofline['share'])} of the {roofline['limit']} limit: "
            f"{words.microseconds(roofline['limit_us'])} of {words.microseconds(roofline['time_us'])} us; "
            f"no correct program takes less than {words.microseconds(roofline['floor_us'])} us"
        )
    )


def _counters(console: Console, counters: Sequence[Mapping[str, Any]]) -> None:
    section(console, "Counters, in percent of each kernel's own time")
    rows = table()
    rows.add_column(stacked("kernel", "largest stalls"), overflow="fold")
    rows.add_column(stacked("us", "share"), justify="right", no_wrap=True)
    for first, second in (("compute", "SOL %"), ("memory", "SOL %"), ("occupancy", "%"), ("L2 hits", "%")):
        rows.add_column(stacked(first, second), justify="right", no_wrap=True)
    for one in counters:
        stalls = words.largest(one["stalls_pct"], _STALLS_SHOWN)
        listed = ", ".join(f"{name} {value:.0f}" for name, value in stalls)
        figures = ("sm_sol_pct", "memory_sol_pct", "occupancy_pct", "l2_hit_pct")
        rows.add_row(
            stacked(words.kernel_name(one["kernel"]), listed),
            stacked(words.microseconds(one["time_us"]), words.share(one["time_share"])),
            *(words.percent(one[name]) for name in figures),
        )
    console.print(rows)


def _code(console: Console, code: Sequence[Mapping[str, Any]]) -> None:
    section(console, "Machine code")
    wide = is_wide(console)
    rows = table()
    rows.add_column(stacked("kernel", "arch"), overflow="fold")
    headers = (("registers", "a thread"), ("shared", "bytes"), ("spills", "instr."), ("instruc-", "tions"))
    for first, second in headers:
        rows.add_column(stacked(first, second), justify="right", no_wrap=True)
    rows.add_column("tensor cores", overflow="fold", no_wrap=wide)
    for one in code:
        spilled = None
        if one["spill_stores"] is not None or one["spill_loads"] is not None:
            spilled = (one["spill_stores"] or 0) + (one["spill_loads"] or 0)
        used = ", ".join(f"{words.printable(name)} {count:,}" for name, count in one["tensor_core"].items())
        rows.add_row(
            stacked(words.kernel_name(one["kernel"]), words.printable(one["arch"])),
            _count(one["registers"]),
            _count(one["shared_bytes"]),
            styled(_count(spilled), BAD if spilled else PLAIN),
            _count(one["instructions"]),
            Text(used or "none"),
        )
    console.print(rows)


def _count(value: int | None) -> str:
    return words.NOTHING if value is None else f"{value:,}"


def _sanitizer(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    section(console, "Sanitizer")
    for one in runs:
        errors = one["errors"]
        verdict = styled(words.plural(errors, "error") if errors else "clean", BAD if errors else PLAIN)
        console.print(Text.assemble(f"{words.printable(one['tool'])}: ", verdict))
        if errors:
            console.print(Text(words.printable(one["excerpt"]), "dim"), soft_wrap=True)


_PARTS: dict[str, Callable[[Console, Any], None]] = {
    "memory": _memory,
    "launches": _launches,
    "roofline": _roofline,
    "counters": _counters,
    "code": _code,
    "sanitizer": _sanitizer,
}
