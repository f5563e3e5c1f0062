"""Memory errors and races, by NVIDIA's compute-sanitizer on a program that makes the call."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence

from kernels.evaluate.evaluation import Sanitizer
from kernels.evaluate.measures import nvidia_tools as tools
from kernels.evaluate.unavailable import Unavailable

__all__ = ["TOOLS", "parse", "run"]

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FIX = "install compute-sanitizer (it comes with the CUDA toolkit) and put it on PATH"
# Lines of a report that is kept: the first findings say what is wrong.
_EXCERPT_LINES = 40

_ERRORS = re.compile(r"^=+ ERROR SUMMARY: (\d+) errors?", re.MULTILINE)
_HAZARDS = re.compile(
    r"^=+ RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)", re.MULTILINE
)


def run(argv: Sequence[str], tool: str = "memcheck", *, seconds: float = 600.0) -> Sanitizer:
    """Runs ``argv`` under compute-sanitizer; ``errors`` is 0 when it found nothing.

    Of racecheck warnings count as well. The program's own failure is part of the report when
    the sanitizer finished. Raises ``ValueError`` for an unknown tool, and
    :class:`Unavailable` when compute-sanitizer is missing, cannot work here, or does not
    finish in time.
    """
    if tool not in TOOLS:
        raise ValueError(f"tool={tool!r} is not supported; supported: {', '.join(TOOLS)}")
    program = tools.find("compute-sanitizer", FIX)
    with tempfile.TemporaryDirectory(prefix="kernelwright-sanitizer-") as folder:
        # To a file: what the program itself prints must not be taken for the tool's words.
        log = os.path.join(folder, "report.txt")
        options = ["--tool", tool, "--target-processes", "all", "--log-file", log]
        finished = tools.run([program, *options, *argv], seconds)
        if finished.code is None:
            raise Unavailable(f"compute-sanitizer --tool {tool} did not finish in {seconds:.0f} s")
        return parse(tools.read_log(log) or finished.errors, tool)


def parse(text: str, tool: str) -> Sanitizer:
    """What a report says. Raises :class:`Unavailable` when it has no summary, with the tool's own words."""
    own = [line for line in text.splitlines() if line.startswith("=========")]
    # A summary for each process.
    hazards = [int(displayed) for displayed, _, _ in _HAZARDS.findall("\n".join(own))]
    errors = [int(count) for count in _ERRORS.findall("\n".join(own))]
    if not hazards and not errors:
        words = [line.lstrip("= ") for line in own if line.strip("= ")] or text.strip().splitlines()
        telling = [line for line in words if "rror" in line] or words
        raise Unavailable(
            f"compute-sanitizer --tool {tool} gave no summary: {telling[-1] if telling else 'no output'}"
        )
    total = sum(hazards) + sum(errors)
    findings = [line for line in own if line.strip("= ")] if total else []
    return Sanitizer(tool, total, "\n".join(findings[:_EXCERPT_LINES]))
