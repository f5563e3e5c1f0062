"""The GPU's own counters by Nsight Compute (ncu): how near its limits a kernel is, and what it waits for.

Every percentage is of one kernel, and stays with it: a kernel that ran several times has
the mean over its runs, weighted by their time, and different kernels are never added up.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels.evaluate.evaluation import Counters
from kernels.evaluate.measures.nvidia_tools import find, read_log, run
from kernels.evaluate.unavailable import Unavailable

__all__ = ["parse", "profile"]

INSTALL = "install Nsight Compute (apt-get install nsight-compute, or with the CUDA toolkit), ncu on PATH"
PERMIT = (
    "run as root (in a container: with --cap-add SYS_ADMIN), or let users read the counters: echo 'options "
    "nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-profiler.conf and reboot"
)

_SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "MemoryWorkloadAnalysis")

_TIME = "gpu__time_duration.sum"
_FIGURES = {
    "sm_sol_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_sol_pct": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
}
_METRICS = (_TIME, *_FIGURES.values())
# Cycles a warp waits for each reason, per instruction issued. "selected" is the issue itself, and
# "..._not_issued" the same waits once more, those of cycles in which no warp at all could issue.
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_NO_STALL = re.compile(r"selected|\w+_not_issued")

_MICROSECONDS = {
    "ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6,
    "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6,
}  # fmt: skip


@dataclass(frozen=True)
class _Run:
    kernel: str
    time_us: float
    figures: Mapping[str, float]
    stalls: Mapping[str, float]


def profile(argv: Sequence[str], *, seconds: float = 600.0, ranged: bool = True) -> tuple[Counters, ...]:
    """Counters of every kernel that ``argv`` launches, the one with the most time first.

    With ``ranged`` only what runs between cudaProfilerStart and cudaProfilerStop counts.
    ncu runs every kernel several times, with its caches flushed, so its times compare the kernels
    with each other and not with the timing section. The clocks are left alone: an ncu that is
    stopped while it holds them would leave them held for everybody.
    Raises :class:`Unavailable` with the reason and the command that mends it.
    """
    program = find("ncu", INSTALL)
    command = [program, "--csv", "--page", "raw", "--target-processes", "all", "--clock-control", "none"]
    command += [word for section in _SECTIONS for word in ("--section", section)]
    command += ["--metrics", ",".join(_METRICS)]
    if ranged:
        command += ["--profile-from-start", "off"]
    with tempfile.TemporaryDirectory(prefix="kernelwright-counters-") as folder:
        # To a file: what the program itself prints must not be taken for the tool's words.
        log = os.path.join(folder, "counters.csv")
        finished = run([*command, "--log-file", log, *argv], seconds)
        if finished.code is None:
            raise Unavailable(f"ncu did not finish in {seconds:.0f} s")
        return parse(read_log(log) or finished.errors)


def parse(text: str) -> tuple[Counters, ...]:
    """What ``ncu --csv --page raw`` wrote; lines that are no table row are passed over.

    Raises :class:`Unavailable` when there is no table in it, with ncu's own words.
    """
    runs = list(_runs(text))
    if not runs:
        raise _why_not(text)
    by_kernel: dict[str, list[_Run]] = {}
    for one in runs:
        by_kernel.setdefault(one.kernel, []).append(one)
    total_us = sum(one.time_us for one in runs)
    found = [_counters(kernel, several, total_us) for kernel, several in by_kernel.items()]
    return tuple(sorted(found, key=lambda counters: -counters.time_share))


def _why_not(text: str) -> Unavailable:
    if "ERR_NVGPUCTRPERM" in text:
        return Unavailable("ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)", PERMIT)
    own = [line.lstrip("= ") for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    if not own:
        return Unavailable("ncu saw no kernel")
    return Unavailable(f"ncu gave no counters: {own[0]}")


def _runs(text: str) -> Iterator[_Run]:
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID",') and _TIME in line), None)
    if begin is None:
        return
    rows = csv.reader(io.StringIO("\n".join(line for line in lines[begin:] if line.startswith('"'))))
    names, units = next(rows), next(rows, [])
    unit = dict(zip(names, units, strict=False)).get(_TIME, "")
    if unit not in _MICROSECONDS:
        raise Unavailable(f"ncu gives times in {unit!r}; known are {', '.join(_MICROSECONDS)}")
    scale = _MICROSECONDS[unit]
    for row in rows:
        if len(row) != len(names) or not row[0].isdigit():
            continue
        values = dict(zip(names, row, strict=True))
        yield _Run(
            kernel=values["Kernel Name"],
            time_us=_number(values[_TIME]) * scale,
            figures={field: _number(values.get(metric, "")) for field, metric in _FIGURES.items()},
            stalls={
                match.group(1): _number(value)
                for name, value in values.items()
                if (match := _STALL.fullmatch(name)) and not _NO_STALL.fullmatch(match.group(1))
            },
        )


def _number(text: str) -> float:
    """ncu writes ``1,234.5``, and ``n/a`` or nothing for what a GPU does not count."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def _counters(kernel: str, runs: Sequence[_Run], total_us: float) -> Counters:
    spent = sum(one.time_us for one in runs)

    def mean(values: Sequence[float]) -> float:
        if spent == 0:
            return float("nan")
        return sum(value * one.time_us for value, one in zip(values, runs, strict=True)) / spent

    stalls = {reason: mean([one.stalls[reason] for one in runs]) for reason in runs[0].stalls}
    stalls = {reason: value for reason, value in stalls.items() if value > 0}  # NaN is not above 0
    waited = sum(stalls.values())
    ordered = sorted(stalls.items(), key=lambda item: -item[1])
    return Counters(
        kernel=kernel,
        time_us=spent / len(runs),
        time_share=spent / total_us if total_us else float("nan"),
        stalls_pct={reason: 100 * value / waited for reason, value in ordered},
        **{field: mean([one.figures[field] for one in runs]) for field in _FIGURES},
    )
