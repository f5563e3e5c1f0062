"""The times of several routes, which take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernels.evaluate.bench_parts.routes import OnSets, Route
from kernels.evaluate.result import BenchRow, Timing
from kernels.evaluate.timing.cuda import Sampled, Timer
from kernels.evaluate.timing.cuda_tools import CudaTools
from kernels.evaluate.timing.host import time_host
from kernels.evaluate.timing.turns import take_turns

__all__ = ["GRAPH_LIMIT_US", "Timers", "cpu_times"]

# A call this long is many launches: its graph would take longer to record than to learn from.
GRAPH_LIMIT_US = 50_000.0


def cpu_times(
    rows: Mapping[str, BenchRow], routes: Mapping[str, Route], inputs: Sequence[Any], seconds: float
) -> dict[str, BenchRow]:
    """``rows`` with the time of a call of ``routes``."""
    timings = time_host(
        {name: route.on(inputs) for name, route in routes.items()},
        seconds=seconds,
        prepare={name: route.select for name, route in routes.items()},
    )
    return {**rows, **{name: replace(rows[name], eager=timing) for name, timing in timings.items()}}


@dataclass
class Timers:
    """The timers of several routes on the current CUDA device, which take turns."""

    routes: Mapping[str, OnSets]
    seconds: float
    tools: CudaTools
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._timers = {name: Timer(route.calls, tools=self.tools) for name, route in self.routes.items()}

    def take(self, names: Iterable[str], take: Callable[[str, Timer, int], Sampled]) -> dict[str, Timing]:
        """The timings of ``names``; the reason of each that has none goes to the notes."""

        def batch(name: str, samples: int) -> Sampled:
            self.routes[name].select()
            return take(name, self._timers[name], samples)

        timings, reasons = take_turns(list(names), batch, seconds=self.seconds, clock_ns=self.tools.clock_ns)
        self.notes |= reasons
        return timings

    def eager(self, names: Iterable[str], cache: str = "warm") -> dict[str, Timing]:
        return self.take(names, lambda _, timer, n: timer.eager(n, cache=cache, seconds=self.seconds))

    def graph(self, names: Iterable[str], cache: str = "warm") -> dict[str, Timing]:
        return self.take(names, lambda _, timer, n: timer.graph(n, cache=cache, seconds=self.seconds))

    def host(self, calls: Mapping[str, int]) -> dict[str, Timing]:
        """What a call costs the host, over so many calls in a row."""
        return self.take(calls, lambda name, timer, n: timer.enqueue(n, calls[name], seconds=self.seconds))
