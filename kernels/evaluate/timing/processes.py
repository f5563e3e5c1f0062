"""How long fresh processes take by their own account."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence

from kernels.evaluate.result import StartupRow

__all__ = ["time_processes"]


def time_processes(
    name: str, command: Sequence[str], environments: Sequence[Mapping[str, str]], *, note: str = ""
) -> StartupRow:
    """Runs ``command`` once under each environment (added to this one); the median is the row's time.

    The command prints, as its last line, a JSON object whose ``seconds`` is the time
    it took. A command that fails makes a row of NaN whose note is what it said.
    """
    samples = []
    for environment in environments:
        finished = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        if finished.returncode != 0:
            words = (finished.stderr.strip() or finished.stdout.strip()).splitlines()
            # What a compiler says first is the cause; what Python says last is, with lines of its own below.
            last = max((at for at, line in enumerate(words) if not line.startswith(" ")), default=0)
            told = "; ".join(map(str.strip, words[last:])) or "no message"
            reason = next((line for line in words if " error: " in line), told)
            return StartupRow(
                name, float("nan"), (), f"failed with exit code {finished.returncode}: {reason}"
            )
        samples.append(float(json.loads(finished.stdout.strip().splitlines()[-1])["seconds"]))
    return StartupRow(name, statistics.median(samples), tuple(samples), note)
