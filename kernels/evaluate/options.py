"""What an evaluation may be told: how many trials, how long, how far."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from kernels.evaluate.result import as_json

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """``trials`` with fresh seeds beyond the default; ``seconds`` of samples for each row of times.

    With no trials the default inputs are all: no cast to float32 and none of a package's cases.
    ``time_limit`` is for one request to a worker, which may hold a whole compilation.
    ``memory_bytes`` 0 allows nine tenths of what is free. ``parts`` are what is measured
    beside correctness: ``"timing"``, ``"memory"``, ``"launches"``, ``"roofline"``,
    ``"counters"``, ``"code"``, ``"lint"``; ``sanitizer`` names compute-sanitizer tools.
    """

    device: str = "cpu"
    trials: int = 5
    seconds: float = 0.5
    compile: bool = True
    time_limit: float = 180.0
    seed: int = 0
    threads: int = field(default_factory=lambda: max(1, len(os.sched_getaffinity(0))))
    memory_bytes: int = 0
    case_flops_ratio: float = 4.0
    parts: tuple[str, ...] = ("timing", "memory", "launches", "roofline", "counters", "code", "lint")
    sanitizer: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For the report; the command is in its environment."""
        return {name: value for name, value in as_json(self).items() if name != "command"}
