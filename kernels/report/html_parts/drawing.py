"""What every drawing shares: the frame with its title and description, axes, labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels.report.html_parts.axes import Scale, tick_text
from kernels.report.html_parts.markup import Markup, element, join

__all__ = ["WIDTH", "Drawing", "horizontal_axis", "label", "shortened"]

WIDTH = 760  # units of the drawing: about the pixels it has on a wide page


@dataclass(frozen=True)
class Drawing:
    """A picture, and what it shows in words for those who do not see it."""

    name: str  # unique on the page
    title: str
    description: str
    height: float
    parts: Sequence[object]

    def figure(self, caption: object = None) -> Markup:
        """The picture in a frame that scrolls where the page is narrow."""
        picture = element(
            "svg",
            element("title", self.title, id=f"{self.name}-title"),
            element("desc", self.description, id=f"{self.name}-desc"),
            *self.parts,
            viewbox=f"0 0 {WIDTH} {self.height:.0f}",
            role="img",
            aria_labelledby=f"{self.name}-title {self.name}-desc",
        )
        frame = element("div", picture, class_="scroll", tabindex="0", role="region", aria_label=self.title)
        return element("figure", frame, element("figcaption", caption) if caption else None)


def label(x: float, y: float, words: object, class_: str = "", anchor: str = "start") -> Markup:
    """Text whose baseline starts, ends or is centred at a place."""
    return element(
        "text",
        words,
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        class_=class_ or None,
        text_anchor=None if anchor == "start" else anchor,
    )


def horizontal_axis(
    scale: Scale, top: float, bottom: float, unit: str, ticks: Iterable[float] = ()
) -> Markup:
    """Grid lines from top to bottom, their values below, and what they count."""
    marks = list(ticks) or scale.ticks()
    lines = "".join(f"M{scale.place(value):.1f} {top:.1f}V{bottom:.1f}" for value in marks)
    return join(
        [
            element("path", d=lines, class_="grid"),
            element("path", d=f"M{scale.start:.1f} {bottom:.1f}H{scale.end:.1f}", class_="axis"),
            *(_tick(scale.place(value), bottom + 16, tick_text(value)) for value in marks),
            label(scale.end, bottom + 34, unit, anchor="end"),
        ]
    )


def _tick(place: float, y: float, words: str) -> Markup:
    """A value under its line, moved inwards where it would be cut off by the edge."""
    half = 3.7 * len(words)
    anchor = "end" if place + half > WIDTH else "start" if place - half < 0 else "middle"
    return label(place, y, words, anchor=anchor)


def shortened(name: str, most: int) -> str:
    """``name``, with its middle left out when it is longer than ``most`` characters."""
    if len(name) <= most:
        return name
    return f"{name[: most - most // 3 - 1]}…{name[-(most // 3) :]}"
