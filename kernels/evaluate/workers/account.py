"""Where a stretch of time went, by the kernel's own records: running, or waiting for a processor.

Read from outside, so that nothing in a worker can change it. Waiting is what /proc/PID/task/TID/schedstat
says of every thread, and what the host of a virtual machine took; running is the CPU clock of the process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Account", "accounted", "processors"]

# CPU time that no living thread has, above this share and this much: a thread ended, and its record with it.
_LOST_SHARE, _LOST_SECONDS = 0.05, 2e-4
_STOLEN = 8  # the field of /proc/stat's first line


@dataclass
class Account:
    """Seconds of a stretch of time.

    ``waited`` adds up what the worker's threads and the judge's waited for a processor: no less than what
    the busy machine cost them together; None where there is no record. ``cpu`` is what the worker's
    threads ran, 0 where that is not told.
    """

    waited: float | None = None
    cpu: float = 0.0


def processors() -> int:
    """How many threads can run at the same moment here."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def accounted(pid: int) -> Iterator[Account]:
    """Fills the account of process ``pid`` and the calling thread when the block has ended."""
    account = Account()
    # The clock first: to be read brings the records of running threads up to date.
    stolen, cpu, before, mine = _stolen(), _cpu_of(pid), _threads(pid), _of(Path("/proc/thread-self"))
    yield account
    now = _of(Path("/proc/thread-self"))
    cpu, after, stolen = _cpu_of(pid) - cpu, _threads(pid), _stolen() - stolen
    ran = sum(one[0] - before.get(thread, (0.0, 0.0))[0] for thread, one in after.items())
    account.cpu = max(0.0, cpu - stolen)
    if mine is None or now is None or not after or cpu - ran > max(_LOST_SHARE * cpu, _LOST_SECONDS):
        return
    waited = sum(one[1] - before.get(thread, (0.0, 0.0))[1] for thread, one in after.items())
    account.waited = waited + (now[1] - mine[1]) + stolen


def _threads(pid: int) -> dict[str, tuple[float, float]]:
    """Seconds run and waited by each living thread."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            one = _of(Path(f"/proc/{pid}/task/{thread}"))
            if one is not None:
                found[thread] = one
    return found


def _of(folder: Path) -> tuple[float, float] | None:
    try:
        ran, waited, _ = (folder / "schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(ran) / 1e9, int(waited) / 1e9


def _cpu_of(pid: int) -> float:
    # The clock of another process by its number, as clock_getcpuclockid(3) makes it.
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def _stolen() -> float:
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat", encoding="ascii") as lines:
        return int(lines.readline().split()[_STOLEN]) / os.sysconf("SC_CLK_TCK")
    return 0.0
