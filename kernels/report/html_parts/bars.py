"""Bars: the kernels of one call, and the counters of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernels.report import words
from kernels.report.html_parts.axes import scale_for
from kernels.report.html_parts.drawing import WIDTH, Drawing, horizontal_axis, label, shortened
from kernels.report.html_parts.markup import Markup, element

__all__ = ["counters_plot", "launches_plot", "together_us"]

_FIGURES = (
    ("compute", "sm_sol_pct"),
    ("memory", "memory_sol_pct"),
    ("occupancy", "occupancy_pct"),
    ("L2 hits", "l2_hit_pct"),
)
_STALLS = 6
_SHADES = (0.95, 0.78, 0.62, 0.48, 0.36, 0.26)


def together_us(launch: Mapping[str, Any]) -> float | None:
    """The time of all launches of one kernel in one call; None where no time was recorded."""
    times = [words.number(each) or 0.0 for each in launch["each_us"]]
    return sum(times) / len(times) * launch["count"] if times else None


def launches_plot(name: str, launches: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """One bar for each kernel; None where no time was recorded."""
    timed = [(one, time) for one in launches if (time := together_us(one)) is not None]
    if not timed:
        return None
    scale = scale_for([0.0, *(time for _, time in timed)], 6, WIDTH - 6, False, 0.0)
    lane, top = 46.0, 4.0
    bottom = top + lane * len(timed)
    parts: list[object] = [
        horizontal_axis(scale, top, bottom, "microseconds of one call, on the GPU's own clock")
    ]
    for at, (one, time) in enumerate(timed):
        y = top + lane * at
        parts.append(label(6, y + 14, shortened(words.kernel_name(one["kernel"]), 76), "strong"))
        parts.append(
            label(WIDTH - 6, y + 14, f"{one['count']:,} x, {words.microseconds(time)} us", "strong", "end")
        )
        parts.append(_bar(6, y + 22, max(scale.place(time) - 6, 1), 14, "bar mine"))
    said = "; ".join(
        f"{words.kernel_name(one['kernel'])}: {words.plural(one['count'], 'launch')}, "
        f"{words.microseconds(time)} us"
        for one, time in timed
    )
    return Drawing(name, "Time of each kernel in one call", f"{said}.", bottom + 42, parts)


def _bar(x: float, y: float, width: float, height: float, class_: str, **more: object) -> Markup:
    return element(
        "rect",
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        width=f"{width:.1f}",
        height=f"{height:.0f}",
        rx="2",
        class_=class_,
        **more,
    )


def counters_plot(name: str, counters: Sequence[Mapping[str, Any]]) -> Drawing:
    """For each kernel four bars out of 100 %, and its stalls side by side."""
    parts: list[object] = []
    y = 4.0
    for one in counters:
        share = f"{words.share(one['time_share'])} of the time, {words.microseconds(one['time_us'])} us"
        parts.append(label(6, y + 14, shortened(words.kernel_name(one["kernel"]), 70), "strong"))
        parts.append(label(WIDTH - 6, y + 14, share, anchor="end"))
        y += 26
        for word, key in _FIGURES:
            parts += _percent(word, words.number(one[key]), y)
            y += 21
        y += 4
        parts += _stalls(one["stalls_pct"], y)
        y += 52
    said = "; ".join(
        f"{words.kernel_name(one['kernel'])}: "
        + ", ".join(f"{word} {words.percent(one[key])} %" for word, key in _FIGURES)
        for one in counters
    )
    return Drawing(name, "Counters of each kernel", f"In percent of the kernel's own time. {said}.", y, parts)


def _percent(word: str, value: float | None, y: float) -> Iterator[Markup]:
    left, width = 92.0, WIDTH - 92.0 - 56.0
    yield label(left - 12, y + 11, word, anchor="end")
    yield _bar(left, y + 1, width, 12, "track")
    if value is None or math.isnan(value):
        yield label(WIDTH - 6, y + 11, words.NOTHING, "strong", "end")
        return
    yield _bar(left, y + 1, max(0.0, min(value, 100.0)) / 100 * width, 12, "bar mine")
    yield label(WIDTH - 6, y + 11, f"{words.percent(value)} %", "strong", "end")


def _stalls(stalls: Mapping[str, float], y: float) -> Iterator[Markup]:
    """The largest few, to the scale of the bars above; what is narrower than its name is named below."""
    left, width = 92.0, WIDTH - 92.0 - 56.0
    largest = words.largest(stalls, _STALLS)
    if not largest:
        return
    yield label(left - 12, y + 11, "stalls", anchor="end")
    yield _bar(left, y + 1, width, 14, "track")
    x = left
    for (_, value), shade in zip(largest, _SHADES, strict=False):
        part = min(value, 100.0) / 100 * width
        yield _bar(x, y + 1, part, 14, "bar warn stall", opacity=shade)
        x += part
    listed = ", ".join(f"{reason} {value:.0f} %" for reason, value in largest)
    yield label(left, y + 31, shortened(listed, 100))
