"""Every sample of every timed way: a strip of dots, the median, and its interval.

Ways that differ tenfold share an axis on which each is a line; a second drawing shows
the same samples in percent of each way's own median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.report import words
from kernels.report.html_parts.axes import Scale, scale_for
from kernels.report.html_parts.drawing import WIDTH, Drawing, horizontal_axis, label, shortened
from kernels.report.html_parts.markup import Markup, element

__all__ = ["spread_plot", "timing_plot"]

_LANE, _STRIP, _TOP, _LEFT, _RIGHT = 54.0, 14.0, 8.0, 6.0, 6.0
_WIDE_PERCENT = 100.0
_COLUMN = 2.2  # dots closer together than this are stacked


@dataclass(frozen=True)
class _Strip:
    """One way: its samples, median and interval in the unit of the axis."""

    name: str
    figures: str
    mine: bool
    samples: tuple[float, ...]
    median: float
    low: float
    high: float


def timing_plot(name: str, title: str, rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """``rows`` are timing rows of one kind, each with samples; the axis is microseconds."""
    strips = [_strip(row) for row in rows]
    scale = _scale(strips, None)
    kind = "logarithmic" if scale.logarithmic else "linear"
    return _drawing(name, title, strips, scale, f"microseconds a call, {kind} axis")


def spread_plot(name: str, title: str, rows: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """The same rows; the axis is the distance from each way's own median in percent of it.

    None where samples lie so far apart that the first drawing shows it already.
    """
    strips = [_in_percent(_strip(row)) for row in rows]
    if any(abs(value) > _WIDE_PERCENT for strip in strips for value in strip.samples):
        return None
    return _drawing(name, title, strips, _scale(strips, False), "percent away from the way's own median")


def _strip(row: Mapping[str, Any]) -> _Strip:
    samples = tuple(words.number(value) or 0.0 for value in row["samples_us"])
    ordered = sorted(samples)
    median = words.number(row["median_us"])
    middle = ordered[len(ordered) // 2] if median is None else median
    low, high = words.number(row["low_us"]), words.number(row["high_us"])
    figures = f"{words.microseconds(middle)} us"
    if low is not None and high is not None:
        figures += f" ({words.microseconds(low)} to {words.microseconds(high)})"
    ends = (middle if low is None else low, middle if high is None else high)
    return _Strip(words.printable(row["name"]), figures, row["name"] == "candidate", samples, middle, *ends)


def _in_percent(strip: _Strip) -> _Strip:
    def away(value: float) -> float:
        return 100 * (value / strip.median - 1) if strip.median else 0.0

    samples = tuple(map(away, strip.samples))
    figures = f"{min(samples):+.1f} % to {max(samples):+.1f} %"
    return _Strip(strip.name, figures, strip.mine, samples, 0.0, away(strip.low), away(strip.high))


def _scale(strips: Sequence[_Strip], logarithmic: bool | None) -> Scale:
    values = [value for strip in strips for value in strip.samples]
    return scale_for(values, _LEFT, WIDTH - _RIGHT, logarithmic, 0.02)


def _drawing(name: str, title: str, strips: Sequence[_Strip], scale: Scale, unit: str) -> Drawing:
    bottom = _TOP + _LANE * len(strips)
    parts: list[object] = [
        horizontal_axis(scale, _TOP, bottom, unit),
        *(_lane(strip, scale, _TOP + _LANE * at) for at, strip in enumerate(strips)),
    ]
    said = "; ".join(f"{strip.name}, {len(strip.samples)} samples: {strip.figures}" for strip in strips)
    return Drawing(name, title, f"One dot for each sample, {unit}. {said}.", bottom + 42, parts)


def _lane(strip: _Strip, scale: Scale, top: float) -> Markup:
    middle = top + 34
    low, high, median = (scale.place(value) for value in (strip.low, strip.high, strip.median))
    suffix = " mine" if strip.mine else ""
    return element(
        "g",
        label(scale.start, top + 13, shortened(strip.name, 60), "mine" if strip.mine else "strong"),
        label(scale.end, top + 13, strip.figures, "mine" if strip.mine else "", "end"),
        element("path", d=_dots(strip.samples, scale, middle), class_=f"dots{suffix}", stroke_width="2.6"),
        element(
            "rect",
            x=f"{low:.1f}",
            y=f"{middle - _STRIP:.1f}",
            width=f"{max(high - low, 1):.1f}",
            height=f"{2 * _STRIP:.1f}",
            class_=f"band{suffix}",
        ),
        element("path", d=f"M{median:.1f} {middle - _STRIP:.1f}v{2 * _STRIP:.1f}", class_="mark"),
    )


def _dots(samples: Sequence[float], scale: Scale, middle: float) -> str:
    """One path for all dots: a line of no length with round ends each; stacked where they would hide."""
    columns: dict[int, list[float]] = {}
    for value in samples:
        place = scale.place(value)
        columns.setdefault(round(place / _COLUMN), []).append(place)
    moves = []
    for places in columns.values():
        step = min(_COLUMN, 2 * (_STRIP - 1.5) / len(places))
        for order, place in enumerate(places):
            # 0, 1, -1, 2, -2, ...: from the middle outwards
            away = (order + 1) // 2 * (1 if order % 2 else -1)
            moves.append(f"M{place:.1f} {middle + away * step:.1f}h0")
    return "".join(moves)
