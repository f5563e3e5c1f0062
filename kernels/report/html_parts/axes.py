"""Scales of the drawings: from a value to a place, and the values worth a mark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Scale", "scale_for", "tick_text"]


@dataclass(frozen=True)
class Scale:
    """Maps ``low`` to ``start`` and ``high`` to ``end``, evenly or by powers of ten."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def place(self, value: float) -> float:
        """Where ``value`` is; what lies outside is put on the edge."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, wanted: int = 6) -> list[float]:
        """Round values from low to high, about ``wanted`` of them."""
        return self._decades(wanted) if self.logarithmic else self._even(wanted)

    def _even(self, wanted: int) -> list[float]:
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _decades(self, wanted: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        span = math.log10(self.high / self.low)
        if span * 8 <= wanted + 3:
            return [
                step * 10.0**power
                for power in range(first, last + 1)
                for step in (1, 1.5, 2, 3, 4, 6, 8)
                if self.low <= step * 10.0**power <= self.high
            ]
        factors = (1, 2, 5) if span * 3 <= wanted + 2 else (1, 3) if span * 2 <= wanted + 2 else (1,)
        skip = max(1, math.ceil(span / wanted))
        every = [
            factor * 10.0**power
            for power in range(first, last + 1)
            if power % skip == 0
            for factor in factors
        ]
        return [value for value in every if self.low * 0.9999 <= value <= self.high * 1.0001]


def scale_for(
    values: Sequence[float], start: float, end: float, logarithmic: bool | None = None, margin: float = 0.04
) -> Scale:
    """A scale that holds ``values``; by powers of ten where all are above 0 and differ more than sixfold."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    positive = [value for value in finite if value > 0]
    low, high = min(finite), max(finite)
    if logarithmic is None:
        logarithmic = bool(positive) and low > 0 and high / low > 6
    if logarithmic:
        low = min(positive, default=0.1)
        high = max(positive, default=1.0)
        if high / low < 1.5:
            low, high = low / 1.5, high * 1.5
        reach = (high / low) ** margin
        return Scale(low / reach, high * reach, start, end, True)
    spread = (high - low) or abs(high) or 1.0
    return Scale(low - margin * spread, high + margin * spread, start, end, False)


def tick_text(value: float) -> str:
    """``0.05``, ``20``, ``1,000``, ``1e-07``: short, and exact for a round value."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.0e}"
    return f"{value:,.10f}".rstrip("0").rstrip(".")
