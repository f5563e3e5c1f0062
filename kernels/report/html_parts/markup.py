"""Markup that cannot be broken out of: whatever is not markup already is escaped.

``element("p", name)`` escapes ``name``; only what :func:`element` returned passes as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from kernels.report.words import printable

__all__ = ["Markup", "element", "join", "table", "text"]

# Elements that have no end tag in HTML, and those of SVG that are closed at once.
_VOID = frozenset(("br", "col", "meta"))
_PROPERTIES = {"viewbox": "viewBox"}


class Markup(str):
    """Text that is markup, made by this module."""

    __slots__ = ()


def text(value: object) -> Markup:
    """``value`` as text: every character that cannot be seen written out, and the rest escaped."""
    return value if isinstance(value, Markup) else Markup(escape(printable(value), quote=True))


def element(tag: str, *children: object, **properties: object) -> Markup:
    """``<tag property="...">children</tag>``.

    A property that is None or False is left out, one that is True stands alone; ``class_``
    is ``class``, and any other ``_`` is a ``-`` (``stroke_width``).
    """
    parts = [tag]
    for name, value in properties.items():
        if value is None or value is False:
            continue
        name = _PROPERTIES.get(name, name.rstrip("_").replace("_", "-"))
        parts.append(name if value is True else f'{name}="{text(value)}"')
    opened = f"<{' '.join(parts)}>"
    if tag in _VOID:
        return Markup(opened)
    return Markup(f"{opened}{join(children)}</{tag}>")


def join(children: Iterable[object], between: str = "") -> Markup:
    """One after the other; None is nothing."""
    return Markup(between.join(text(child) for child in children if child is not None))


def table(
    headers: Iterable[object], rows: Iterable[str | Sequence[object]], caption: str = "", left: int = 1
) -> Markup:
    """A table in a frame that can scroll; a row that is a string heads the rows below it.

    The first ``left`` columns are text, the rest figures.
    """
    head_cells = [element("th", one, scope="col", class_=_side(at, left)) for at, one in enumerate(headers)]
    body = []
    for row in rows:
        if isinstance(row, str):
            title = element("th", row, scope="rowgroup", class_="text", colspan=len(head_cells))
            body.append(element("tr", title, class_="group"))
            continue
        cells = [
            element("th", one, scope="row", class_="text")
            if at == 0
            else element("td", one, class_=_side(at, left))
            for at, one in enumerate(row)
        ]
        body.append(element("tr", *cells))
    whole = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", element("tr", *head_cells)),
        element("tbody", *body),
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")


def _side(at: int, left: int) -> str:
    return "text" if at < left else "figure"
