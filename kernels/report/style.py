"""How the terminal reports of an evaluation look: tables, two-line cells, colours for moods."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernels.report.summary import BAD, GOOD, PLAIN, WARN

__all__ = ["WIDE", "is_wide", "section", "stacked", "styled", "table"]

# From this many columns on, what is stacked in a cell on a narrow terminal has columns of its own.
WIDE = 112
_STYLES = {GOOD: "green", WARN: "yellow", BAD: "bold red", PLAIN: ""}


def is_wide(console: Console) -> bool:
    """Whether tables may use one line for each row."""
    return console.width >= WIDE


def styled(text: str, tone: str) -> Text:
    """``text`` in the colour of its mood; never markup."""
    return Text(text, _STYLES.get(tone, ""))


def stacked(first: str | Text, second: str, style: str = "") -> Text:
    """Two lines in one cell, the second one dim; one line when there is nothing to put below."""
    top = first if isinstance(first, Text) else Text(first, style)
    return Text.assemble(top, "\n", (second, "dim")) if second else top


def table() -> Table:
    """A table of this project: a rule under the header, nothing around."""
    return Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
        header_style="bold",
        expand=False,
    )


def section(console: Console, title: str) -> None:
    """A blank line and a title."""
    console.print()
    console.print(Text(title, "bold underline"))
