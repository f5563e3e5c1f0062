"""``popcorn_pri``: the global that some reference files draw their sizes from.

Such a file writes ``N = popcorn_pri.jitter_int(1024, 0.5, 2.0, align=64)`` and expects
another size in every trial. One :class:`PopcornPri` lives for one trial: the same name,
or where there is none the same default, gives the same draw however often it is asked,
so that ``get_inputs`` and ``get_init_inputs`` agree. Trial 0 gives the defaults.

The form of the arguments varies between files, so all of these are taken: ratios as two
numbers, as one tuple, or by keyword (``low_ratio``/``high_ratio``, ``min_ratio``/
``max_ratio``, ``low``/``high``, ``ratio``, ``ratios``); one ratio alone is the spread to both sides;
more than two are choices. ``align`` rounds down to a multiple, and never below one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

__all__ = ["NAME", "PopcornPri"]

NAME = "popcorn_pri"
_LOW = ("low_ratio", "min_ratio", "low", "lo")
_HIGH = ("high_ratio", "max_ratio", "high", "hi")
_MANY = ("ratios", "ratio", "choices", "scale")
_ALIGN = ("align", "multiple_of", "alignment", "multiple")
# Words of files that choose among ways of drawing, of which there is one here.
_UNUSED = ("seed", "mode", "pair_attention")
# Where a file names no ratio: from half the default to half as much again.
_USUAL = (0.5, 1.5)


class PopcornPri:
    """The draws of one trial; all of them follow from ``seed``. ``trial`` 0 gives every default."""

    def __init__(self, trial: int, seed: int) -> None:
        self._trial = trial
        self._seed = seed
        self._drawn: dict[str, int] = {}

    def jitter_int(self, default: Any = None, *rest: Any, **options: Any) -> int:
        """A whole number near ``default``, at least 1. Raises ``TypeError`` for other forms."""
        return self._draw("jitter_int", default, rest, options)

    def trial_dim(self, default: Any = None, *rest: Any, **options: Any) -> int:
        """A dimension of this trial; the same as :meth:`jitter_int`."""
        return self._draw("trial_dim", default, rest, options)

    def sample_input_mode(self, **_: Any) -> str:
        """What some files pass on to :meth:`trial_dim` as ``mode``. There is one way of drawing here."""
        return "default"

    @property
    def draws(self) -> dict[str, int]:
        """What has been drawn so far, by name or default."""
        return dict(self._drawn)

    def _draw(self, function: str, default: Any, rest: Sequence[Any], options: dict[str, Any]) -> int:
        left = dict(options)
        name = left.pop("name", left.pop("key", None))
        if isinstance(default, str):  # trial_dim("N", 1024, ...)
            name, default, rest = default, (rest[0] if rest else left.pop("default", None)), rest[1:]
        elif rest and isinstance(rest[0], str):  # trial_dim(1024, "N", ...)
            name, rest = rest[0], rest[1:]
        if default is None:
            default = left.pop("default", None)
        if isinstance(default, bool) or not isinstance(default, (int, float)):
            raise TypeError(f"popcorn_pri.{function}: the default is {default!r}; supported: a whole number")
        ratios, align = _read(function, list(rest), left)
        low = left.pop("minimum", left.pop("min", 1))
        high = left.pop("maximum", left.pop("max", None))
        for word in _UNUSED:
            left.pop(word, None)
        if left:
            raise TypeError(
                f"popcorn_pri.{function}: unknown {', '.join(sorted(left))}; supported: default, ratios or "
                "low_ratio and high_ratio, align, min, max, name"
            )
        default = int(default)
        if self._trial == 0:
            return self._drawn.setdefault(str(name or default), default)
        key = str(name or default)
        if key not in self._drawn:
            self._drawn[key] = _pick(random.Random(f"{self._seed}:{key}"), default, ratios, align, low, high)
        return self._drawn[key]


def _read(function: str, rest: list[Any], left: dict[str, Any]) -> tuple[tuple[float, ...], int]:
    """The ratios and the alignment, taken out of ``left``."""
    ratios: tuple[float, ...] = ()
    if rest and isinstance(rest[0], (tuple, list)):
        ratios = tuple(float(value) for value in rest.pop(0))
    else:
        numbers: list[float] = []
        while rest and isinstance(rest[0], (int, float)) and len(numbers) < 2:
            numbers.append(float(rest.pop(0)))
        ratios = tuple(numbers)
    align = int(rest.pop(0)) if rest else 1
    if rest:
        raise TypeError(f"popcorn_pri.{function}: {len(rest)} more positional arguments than are supported")
    for word in _ALIGN:
        align = int(left.pop(word, align) or 1)
    for word in _MANY:
        if word in left:
            value = left.pop(word)
            ratios = tuple(map(float, value)) if isinstance(value, (tuple, list)) else (float(value),)
    pair = list(ratios) if len(ratios) == 2 else list(_USUAL)
    for position, words in enumerate((_LOW, _HIGH)):
        for word in words:
            if word in left:
                pair[position] = float(left.pop(word))
                ratios = tuple(pair)
    if len(ratios) == 1:
        only = ratios[0]
        ratios = (1 - only, 1 + only) if only < 1 else (1 / only, only)
    return ratios or _USUAL, max(1, align)


def _pick(
    draw: random.Random, default: int, ratios: tuple[float, ...], align: int, low: Any, high: Any
) -> int:
    ratio = draw.uniform(min(ratios), max(ratios)) if len(ratios) == 2 else draw.choice(ratios)
    value = max(1, int(low or 1), round(default * ratio))
    if high is not None:
        value = min(value, int(high))
    return max(align, value // align * align)
