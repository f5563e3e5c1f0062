"""The case against the machine: rate over intensity, both by powers of ten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernels.report import words
from kernels.report.html_parts.axes import Scale, scale_for, tick_text
from kernels.report.html_parts.drawing import WIDTH, Drawing, label
from kernels.report.html_parts.markup import Markup, element, join

__all__ = ["roofline_plot"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 150.0, 18.0, 330.0


def roofline_plot(name: str, roofline: Mapping[str, Any]) -> Drawing | None:
    """None where the case has no arithmetic or no ceilings, and so no place in the picture."""
    ceilings = roofline["ceilings"]
    rates = {words.printable(key): words.number(value) or 0.0 for key, value in ceilings["tflops"].items()}
    rates = {key: value for key, value in rates.items() if value > 0}
    rate, bandwidth = words.number(roofline["achieved_tflops"]) or 0.0, words.number(ceilings["gbps"]) or 0.0
    if not (roofline["flops"] and roofline["least_bytes"] and rates and rate > 0 and bandwidth > 0):
        return None
    intensity = roofline["flops"] / roofline["least_bytes"]
    slope = bandwidth / 1000  # TFLOP/s for each FLOP a byte
    ridges = [value / slope for value in rates.values()]
    across = scale_for([intensity / 4, intensity * 4, *ridges, min(ridges) / 30], _LEFT, WIDTH - _RIGHT, True)
    top = max(rates.values())
    upwards = scale_for([rate / 2, top * 1.3, min(across.low * slope * 2, rate)], _BOTTOM, _TOP, True, 0.03)
    roof = min(slope * intensity, top)
    parts: list[object] = [
        _grid(across, upwards),
        *_ceilings(rates, slope, across, upwards),
        *_point(intensity, rate, roof, roofline, across, upwards),
    ]
    known = ", ".join(f"{key} {words.rate(value)} TFLOP/s" for key, value in rates.items())
    said = (
        f"The case does {words.units(intensity)} floating-point operations for each byte and reaches "
        f"{words.rate(rate)} TFLOP/s, {words.share(roofline['share'])} of its {roofline['limit']} limit. "
        f"Ceilings: {words.rate(bandwidth)} GB/s; {known}"
    )
    return Drawing(name, "Roofline", f"{said}.", _BOTTOM + 44, parts)


def _grid(across: Scale, upwards: Scale) -> Markup:
    lines = "".join(f"M{across.place(value):.1f} {_TOP}V{_BOTTOM}" for value in across.ticks())
    lines += "".join(f"M{_LEFT} {upwards.place(value):.1f}H{across.end:.1f}" for value in upwards.ticks(5))
    return join(
        [
            element("path", d=lines, class_="grid"),
            element("path", d=f"M{_LEFT} {_TOP}V{_BOTTOM}H{across.end:.1f}", class_="axis"),
            *(
                label(across.place(one), _BOTTOM + 16, tick_text(one), anchor="middle")
                for one in across.ticks()
            ),
            *(
                label(_LEFT - 8, upwards.place(one) + 4, tick_text(one), anchor="end")
                for one in upwards.ticks(5)
            ),
            label(
                across.end, _BOTTOM + 34, "operations for each byte, FLOP/B, logarithmic axis", anchor="end"
            ),
            label(4, _TOP - 6, "TFLOP/s"),
        ]
    )


def _ceilings(rates: Mapping[str, float], slope: float, across: Scale, upwards: Scale) -> Iterator[Markup]:
    top = max(rates.values())
    ridge = top / slope
    first = max(across.low, upwards.low / slope)
    yield element(
        "path",
        d=f"M{across.place(first):.1f} {upwards.place(first * slope):.1f}"
        f"L{across.place(ridge):.1f} {upwards.place(top):.1f}H{across.end:.1f}",
        class_="ceiling",
    )
    lowest = -1e9
    for key, value in sorted(rates.items(), key=lambda pair: pair[1]):
        height = upwards.place(value)
        if value < top:
            start = across.place(value / slope)
            yield element("path", d=f"M{start:.1f} {height:.1f}H{across.end:.1f}", class_="ceiling faint")
        # Labels of ceilings that are close together are moved apart, upwards.
        baseline = height + 4 if lowest < 0 else min(height + 4, lowest - 14)
        lowest = baseline
        yield label(across.end + 8, baseline, f"{key}  {words.rate(value)}", "strong")
    half = (first * min(ridge, across.high)) ** 0.5
    yield label(
        across.place(half) - 10,
        upwards.place(half * slope) - 10,
        f"{words.rate(1000 * slope)} GB/s",
        "strong",
        "end",
    )


def _point(
    intensity: float, rate: float, roof: float, roofline: Mapping[str, Any], across: Scale, upwards: Scale
) -> Iterator[Markup]:
    x, y, limit = across.place(intensity), upwards.place(rate), upwards.place(roof)
    impossible = roofline["time_us"] < roofline["floor_us"]
    yield element("path", d=f"M{x:.1f} {y:.1f}V{limit:.1f}", class_="drop")
    yield element("path", d=f"M{x - 5:.1f} {limit:.1f}h10", class_="mark")
    yield element(
        "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="6.5", class_="point bad" if impossible else "point"
    )
    yield label(x + 13, y + 0, f"{words.rate(rate)} TFLOP/s", "mine")
    yield label(
        x + 13,
        y + 15,
        f"{words.share(roofline['share'])} of the {words.printable(roofline['limit'])} limit",
        "mine",
    )
