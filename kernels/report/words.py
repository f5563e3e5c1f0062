"""Values of a report in words, and texts of a candidate made harmless.

A candidate wrote its sources, its messages and its log, so none of them reaches a
terminal or a page before :func:`printable` has been over it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from kernels.evaluate.evaluation import CLOCK, FRESH, OFTEN, REPEATED
from kernels.report.tables import duration

__all__ = [
    "NOTHING",
    "amount",
    "duration",
    "error",
    "index",
    "inputs",
    "kernel_name",
    "largest",
    "lines_of",
    "microseconds",
    "number",
    "percent",
    "plural",
    "printable",
    "rate",
    "ratio",
    "seconds",
    "share",
    "size",
    "timing_terms",
    "units",
    "wrong",
]

NOTHING = "-"

# Control characters, and the marks that make text read in another order than it runs.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def printable(value: Any) -> str:
    """``value`` as text in which every character that cannot be seen is written out: ``<1b>``."""
    text = str(value).replace("\r\n", "\n")
    return _UNSEEN.sub(lambda found: f"<{ord(found.group()):02x}>", text)


def number(value: Any) -> float | None:
    """A number of a JSON document; the strings that stand for inf and nan too. None for None."""
    return None if value is None else float(value)


def error(value: Any) -> str:
    """An error with two digits: ``1.2e-07``."""
    known = number(value)
    if known is None:
        return NOTHING
    return "0" if known == 0 else f"{known:.1e}"


def wrong(output: Mapping[str, Any]) -> int:
    """How many elements of an output are wrong: out of tolerance, or too many beyond what most need."""
    beyond = output.get("beyond") or 0
    return max(int(output["mismatched"]), beyond if beyond > (output.get("beyond_allowed") or 0) else 0)


# What an error is a multiple of (`own_error_units` in a report).
YARDSTICK = (
    "the reference's own error or, for an element that it says too little of, what rounding to float32 moves"
)


def units(value: Any) -> str:
    """A multiple: ``1.3e-03``, ``0.94``, ``12.5``, ``3,400``, ``1.2e+06``."""
    known = number(value)
    if known is None:
        return NOTHING
    if not math.isfinite(known) or known >= 99_999.5:
        return f"{known:.1e}" if math.isfinite(known) else str(known)
    if 0 < known < 0.005:
        return f"{known:.1e}"
    digits = 2 if known < 9.995 else 1 if known < 99.95 else 0
    return f"{known:,.{digits}f}"


def ratio(value: Any) -> str:
    """A speed-up: ``1.07x``."""
    return NOTHING if value is None else f"{units(value)}x"


def microseconds(value: Any) -> str:
    """Microseconds without their unit, for a column whose header has it: ``0.120``, ``2.688``, ``48,210``."""
    known = number(value)
    if known is None:
        return NOTHING
    if known < 0.0095:
        return f"{known:.2g}"
    digits = 3 if known < 9.9995 else 2 if known < 99.995 else 1 if known < 999.95 else 0
    return f"{known:,.{digits}f}"


def seconds(value: Any) -> str:
    """Seconds with a unit that fits."""
    known = number(value)
    return NOTHING if known is None else duration(known * 1e6)


def share(value: Any) -> str:
    """A fraction as a percentage: ``62 %``, ``0.31 %``."""
    known = number(value)
    if known is None:
        return NOTHING
    digits = 0 if known >= 0.0995 else 1 if known >= 0.00995 else 2
    return f"{100 * known:.{digits}f} %"


def percent(value: Any) -> str:
    """A percentage without its sign; a counter that could not be read is nothing."""
    known = number(value)
    return NOTHING if known is None or math.isnan(known) else f"{known:.0f}"


def size(value: Any) -> str:
    """Bytes: ``0 B``, ``410 kB``, ``6.6 MB`` (powers of 1000)."""
    return amount(value, "B")


def amount(value: Any, unit: str) -> str:
    """Three digits, a prefix and ``unit``: ``6.6 MFLOP``."""
    known = number(value)
    if known is None:
        return NOTHING
    for prefix in ("", "k", "M", "G", "T"):
        if abs(known) < 999.5:
            return f"{known:.3g} {prefix}{unit}"
        known /= 1000
    return f"{known:.3g} P{unit}"


def plural(count: int, word: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    endings = {"ch": "es", "s": "es", "x": "es"}
    ending = next((more for end, more in endings.items() if word.endswith(end)), "s")
    return f"{count:,} {word}{'' if count == 1 else ending}"


def index(value: Sequence[int] | None) -> str:
    """``[0, 3, 17]``."""
    return NOTHING if value is None else f"[{', '.join(map(str, value))}]"


def timing_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the words of a table of times mean, as far as ``rows`` use them; a sentence each."""
    names = {row["name"] for row in rows}
    terms = [
        "Samples: how many x calls in each.",
        "Outliers: further than 3 scaled median deviations from the median, and kept.",
    ]
    if any(row["outside_us"] is not None for row in rows):
        terms.append("From outside: by the judge's clock, less a round trip.")
    if FRESH in names:
        terms.append("New content: one pass by the host's clock over content nobody has seen.")
    if REPEATED in names:
        terms.append("Repeated content: the same calls once more, after the same content was written again.")
    if OFTEN in names:
        terms.append("Often repeated content: the same again, after all batches of its round.")
    if CLOCK in names:
        terms.append("Clock check: long batches, to hold its clock against the judge's.")
    return terms


def inputs(given: Sequence[Any]) -> list[str]:
    """Each input once, with how many in a row are alike: ``3 x float32[2, 80]``."""
    runs = [(text, len(list(run))) for text, run in groupby(map(printable, given))]
    return [text if count == 1 else f"{count} x {text}" for text, count in runs]


def lines_of(finding: Mapping[str, Any]) -> str:
    """``file.py:12``, as far as it is known."""
    path, line = printable(finding.get("path", "")), finding.get("line", 0)
    return f"{path}:{line}" if path and line else path


def largest(parts: Mapping[str, Any], most: int) -> list[tuple[str, float]]:
    """The ``most`` largest of named numbers, the largest first; those that are no number are left out."""
    known = [(printable(name), number(value)) for name, value in parts.items()]
    finite = [(name, value) for name, value in known if value is not None and math.isfinite(value)]
    return sorted(finite, key=lambda pair: -pair[1])[:most]


def rate(value: Any) -> str:
    """A rate with four digits: ``4.87``, ``4050``."""
    known = number(value)
    return NOTHING if known is None else f"{known:.4g}"


def kernel_name(name: Any) -> str:
    """A kernel's name without its namespaces and its argument list; template arguments stay."""
    text = printable(name).removeprefix("void ").replace("(anonymous namespace)::", "")
    depth, end = 0, len(text)
    for position, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            end = position
            break
    return re.sub(r"\b\w+::", "", text[:end]) or text
