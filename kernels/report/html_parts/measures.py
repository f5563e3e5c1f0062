"""The measures of an evaluation as parts of the page; each is None where it was not taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernels.report import words
from kernels.report.html_parts.bars import counters_plot, launches_plot, together_us
from kernels.report.html_parts.markup import Markup, element, join, table
from kernels.report.html_parts.roofline_plot import roofline_plot

__all__ = ["clocks_text", "code", "counters", "launches", "memory", "roofline", "sanitizer"]

Document = Mapping[str, Any]


def memory(document: Document) -> Markup | None:
    """Bytes of inputs, outputs, and beyond."""
    found = document["memory"]
    if not found:
        return None
    names = ("input_bytes", "output_bytes", "extra_bytes", "allocator_bytes", "direct_bytes")
    headers = ("", "inputs", "outputs", "beyond both", "of it through torch", "of it direct")
    exact = ("bytes", *(words.NOTHING if found[name] is None else f"{found[name]:,}" for name in names))
    rounded = ("rounded", *(words.size(found[name]) for name in names))
    return table(headers, [rounded, exact], "Memory of one call")


def launches(document: Document) -> Markup | None:
    """A bar and a row for each kernel of one call."""
    found = document["launches"]
    if found is None:
        return None
    if not found:
        return element("p", "No kernel was seen on the GPU.", class_="warn")
    drawing = launches_plot("launches-plot", found)
    rows = [
        (
            _kernel(one["kernel"]),
            f"{one['count']:,}",
            words.microseconds(together_us(one)),
            _extent(one["grid"]),
            _extent(one["block"]),
        )
        for one in found
    ]
    headers = ("kernel", "launches", "together, us", "grid", "block")
    return join([drawing.figure() if drawing else None, table(headers, rows, "Kernels of one call")])


def _kernel(name: str) -> Markup:
    return element("span", words.kernel_name(name), class_="mono cell-break", title=name)


def _extent(values: Sequence[int]) -> str:
    return " x ".join(map(str, values)) if values else words.NOTHING


def roofline(document: Document) -> Markup | None:
    """The picture, and the figures it is drawn from."""
    found = document["roofline"]
    if not found:
        return None
    drawing = roofline_plot("roofline-plot", found)
    ceilings = found["ceilings"]
    rates = ", ".join(
        f"{words.printable(name)} {words.rate(value)}" for name, value in ceilings["tflops"].items()
    )
    facts = {
        "share of the limit": f"{words.share(found['share'])} of the {found['limit']} limit, "
        f"{words.microseconds(found['limit_us'])} us of {words.microseconds(found['time_us'])} us",
        "physical floor": f"{words.microseconds(found['floor_us'])} us: no correct program takes less",
        "work of one call": f"{words.amount(found['flops'], 'FLOP')} and at least "
        f"{words.size(found['least_bytes'])}, counted by: {words.printable(found['counted_by'])}",
        "reached": f"{words.rate(found['achieved_tflops'])} TFLOP/s, "
        f"{words.rate(found['achieved_gbps'])} GB/s",
        "ceilings": f"{words.rate(ceilings['gbps'])} GB/s; {rates or 'none'} TFLOP/s; "
        f"a launch {words.microseconds(ceilings['launch_us'])} us",
        "measured on": f"{words.printable(ceilings['device'])}, {words.printable(ceilings['date'])}",
    }
    pairs = [one for name, value in facts.items() for one in (element("dt", name), element("dd", value))]
    return join([drawing.figure() if drawing else None, element("dl", *pairs, class_="facts")])


def counters(document: Document) -> Markup | None:
    """Bars out of 100 % for each kernel."""
    found = document["counters"]
    if not found:
        return None
    drawing = counters_plot("counters-plot", found)
    return drawing.figure(
        "Of each kernel's own time or capacity, as Nsight Compute reports them; never summed."
    )


def code(document: Document) -> Markup | None:
    """Registers, shared memory, spills and tensor-core instructions of each kernel."""
    found = document["code"]
    if not found:
        return None
    rows = []
    for one in found:
        known = [one[name] for name in ("spill_stores", "spill_loads") if one[name] is not None]
        spilled = sum(known) if known else None
        used = ", ".join(f"{words.printable(name)} {count:,}" for name, count in one["tensor_core"].items())
        rows.append(
            (
                _kernel(one["kernel"]),
                one["arch"],
                _count(one["registers"]),
                _count(one["shared_bytes"]),
                element("span", _count(spilled), class_="bad") if spilled else _count(spilled),
                _count(one["instructions"]),
                used or "none",
            )
        )
    headers = (
        "kernel",
        "arch",
        "registers a thread",
        "shared, bytes",
        "spills, instructions",
        "instructions",
        "tensor cores",
    )
    return table(headers, rows, "Machine code", left=2)


def _count(value: int | None) -> str:
    return words.NOTHING if value is None else f"{value:,}"


def sanitizer(document: Document) -> Markup | None:
    """What each tool of compute-sanitizer found."""
    found = document["sanitizer"]
    if not found:
        return None
    parts: list[object] = []
    for one in found:
        tone = "bad" if one["errors"] else "good"
        verdict = words.plural(one["errors"], "error") if one["errors"] else "clean"
        parts.append(
            element("p", f"{words.printable(one['tool'])}: ", element("span", verdict, class_=f"tag {tone}"))
        )
        if one["excerpt"]:
            parts.append(element("pre", one["excerpt"], class_="log scroll", tabindex="0"))
    return join(parts)


def clocks_text(clocks: Mapping[str, Any]) -> str:
    """The state of the GPU while it was timed, in one line."""
    return (
        f"SM {_span(clocks['sm_mhz'])} of {clocks['max_sm_mhz']} MHz, "
        f"memory {_span(clocks['memory_mhz'])} MHz, "
        f"{_span(clocks['temperature_c'])} degrees C, {_span(clocks['power_w'])} W"
    )


def _span(values: Sequence[float]) -> str:
    if not values:
        return words.NOTHING
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"
