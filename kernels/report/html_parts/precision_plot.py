"""The error of every trial in units of its yardstick, beside what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.report import words
from kernels.report.html_parts.axes import scale_for
from kernels.report.html_parts.drawing import WIDTH, Drawing, horizontal_axis, label, shortened
from kernels.report.html_parts.markup import element

__all__ = ["precision_plot"]

_LANE, _TOP, _LEFT, _RIGHT = 26.0, 26.0, 190.0, 70.0
# Closer than this the two labels over the plot would overlap.
_LABELS_APART = 90.0


@dataclass(frozen=True)
class _Point:
    name: str
    units: float
    allowed: float | None
    wrong: bool


def precision_plot(name: str, trials: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """None where no output could be set against float64."""
    points = list(_points(trials))
    if not points:
        return None
    shown = [point.units for point in points] + [point.allowed for point in points if point.allowed]
    # 1 is the yardstick itself: always on the axis, to be seen against.
    scale = scale_for(
        [value for value in shown if value and value > 0] + [1.0], _LEFT, WIDTH - _RIGHT, True, 0.08
    )
    bottom = _TOP + _LANE * len(points)
    one = scale.place(1.0)
    parts: list[object] = [
        horizontal_axis(
            scale, _TOP, bottom, "error against float64 in units of the yardstick, logarithmic axis"
        ),
        element("path", d=f"M{one:.1f} {_TOP - 4:.1f}V{bottom:.1f}", class_="ceiling faint"),
    ]
    for at, point in enumerate(points):
        middle = _TOP + _LANE * (at + 0.5)
        tone = "bad" if point.wrong else ""
        place = scale.place(point.units if point.units > 0 else scale.low)
        parts.append(label(_LEFT - 12, middle + 4, shortened(point.name, 24), tone or "strong", "end"))
        if point.allowed:
            x = scale.place(point.allowed)
            parts.append(element("path", d=f"M{x:.1f} {middle - 9:.1f}v18", class_="limit"))
        parts.append(
            element("circle", cx=f"{place:.1f}", cy=f"{middle:.1f}", r="5", class_=f"point {tone}".strip())
        )
        parts.append(label(WIDTH - 4, middle + 4, words.units(point.units), tone or "strong", "end"))
    limit = next((scale.place(point.allowed) for point in points if point.allowed), None)
    # Beside each other, back to back, where both would stand on the same spot.
    ours, theirs = "middle", "middle"
    if limit is not None and abs(limit - one) < _LABELS_APART:
        ours, theirs = ("end", "start") if limit >= one else ("start", "end")
    parts.append(label(one, _TOP - 9, "the yardstick", anchor=ours))
    if limit is not None:
        parts.append(label(limit, _TOP - 9, "allowed", "warn", theirs))
    said = "; ".join(
        f"{point.name}: {words.units(point.units)}, allowed {words.units(point.allowed)}" for point in points
    )
    return Drawing(
        name,
        "Error of every trial",
        f"In units of {words.YARDSTICK}. {said}.",
        bottom + 42,
        parts,
    )


def _points(trials: Sequence[Mapping[str, Any]]) -> Iterator[_Point]:
    for trial in trials:
        for output in trial["outputs"]:
            units = words.number(output["own_error_units"])
            if units is None or math.isnan(units):
                continue
            reference, allowed = (
                words.number(output["reference_error"]),
                words.number(output["allowed_error"]),
            )
            limit = allowed / reference if allowed is not None and reference else None
            name = f"{words.printable(trial['name'])} {words.printable(output['path'])}".strip()
            wrong = bool(words.wrong(output)) or (limit is not None and units > limit)
            yield _Point(name, units, limit, wrong)
