"""What the tables of a terminal are made of: values in words, cells, and where a number was measured.

Every cell is a ``Text``: names and messages hold brackets that rich would otherwise
take for markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernels.evaluate.result import Environment

__all__ = [
    "NOTHING",
    "WIDE",
    "count_text",
    "duration",
    "error_text",
    "new_table",
    "shape_text",
    "show_environment",
    "stacked",
]

# From here on a console has room for one line where a narrow one takes two.
WIDE = 112
NOTHING = "-"


def shape_text(shape: Mapping[str, int]) -> str:
    """``B2 T80 H8/2 D32``: batch, length (rows/keys where they differ), heads (query/kv), head_dim.

    A dimension it has no letter for is written out: ``depth=3``.
    """
    rest = dict(shape)
    parts = []
    if "batch" in rest:
        parts.append(f"B{rest.pop('batch')}")
    for letter, first, second in (("T", "seqlen_q", "seqlen_k"), ("H", "num_heads", "num_kv_heads")):
        if first in rest:
            value, other = rest.pop(first), rest.pop(second, None)
            hide_second = other is None or (letter == "T" and other == value)
            parts.append(f"{letter}{value}" if hide_second else f"{letter}{value}/{other}")
        elif letter == "T" and "seqlen" in rest:
            parts.append(f"T{rest.pop('seqlen')}")
    if "head_dim" in rest:
        parts.append(f"D{rest.pop('head_dim')}")
    parts.extend(f"{name}={value}" for name, value in rest.items())
    return " ".join(parts)


def duration(microseconds: float | None) -> str:
    """Three digits and a unit: ``3.02 us``, ``71.4 ms``, ``2.50 s``."""
    if microseconds is None or math.isnan(microseconds):
        return NOTHING
    for limit, unit, divisor in ((1e3, "us", 1.0), (1e6, "ms", 1e3), (math.inf, "s", 1e6)):
        if microseconds < limit * 0.9995:
            value = microseconds / divisor
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("unreachable: the last limit is infinite")


def error_text(value: float | None) -> str:
    """``1.2e-06``."""
    return NOTHING if value is None else f"{value:.1e}"


def count_text(number: float, unit: str) -> str:
    """``6.6 MFLOP``, ``410 kB``."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:.3g} P{unit}"


def new_table(*, title: str = "") -> Table:
    """A table without lines but one below its header."""
    return Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
        header_style="bold",
    )


def stacked(first: str, second: str, style: str = "") -> Text:
    """Two lines in one cell, the second one dim."""
    return Text.assemble((first, style), "\n", (second, "dim"))


def show_environment(console: Console, environment: Environment, precision: str = "") -> None:
    """Where, with what and when: a number without these means little."""
    parts = [environment.device]
    if environment.driver:
        parts.append(f"driver {environment.driver}")
    else:
        parts.append(f"{environment.threads} threads")
    parts.append(f"torch {environment.torch}")
    parts.append(f"Python {environment.python}")
    parts.append(environment.date)
    console.print(Text(", ".join(parts), "dim"))
    if precision:
        console.print(Text(f"torch's float32 matmul precision: {precision}"))
    if environment.command:
        console.print(Text(environment.command, "dim"), soft_wrap=True)
    console.print()
