"""Workers: processes that run code the judge does not trust, and how they are started and ended.

Each worker leads a session of its own, reads nothing, prints into a pipe of which the
judge keeps the head and the tail, and talks over one socket. A request has a time limit;
memory and the number of processes are watched from outside, because a limit on address
space cannot be used with CUDA. Whatever a worker does, :meth:`Worker.request` returns its
reply or raises :class:`WorkerFailed`; the judge never fails with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels.evaluate.evaluation import Log
from kernels.evaluate.precision import FROM_OUTSIDE
from kernels.evaluate.workers.exchange import Channel, ChannelClosed, ChannelTimeout, Malformed

__all__ = ["Limits", "Worker", "WorkerFailed", "inherited", "private_folder", "worker_command"]

_KEPT = 16_000  # bytes of output kept from the start, and as many from the end
_MOST_PROCESSES = 512
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FOLDER = "kernels-judge-"
_START_SECONDS = 180.0
_END_SECONDS = 60.0
_MARK = "KERNELS_WORKER"
# How long idle threads of a library spin.
_SPINNING = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_ROOM = 2 << 30  # free bytes that make /dev/shm worth using


@dataclass(frozen=True)
class Limits:
    """``seconds`` for one request; ``memory_bytes`` resident, of all the worker's processes together."""

    seconds: float = 180.0
    memory_bytes: int = 0

    @staticmethod
    def of_this_machine(seconds: float) -> Limits:
        """Nine tenths of the memory that is free now."""
        return Limits(seconds, int(_available_bytes() * 0.9))


class WorkerFailed(Exception):
    """A worker did not answer, or answered that it could not do what was asked.

    ``kind`` is ``"timeout"``, ``"memory"``, ``"died"``, ``"protocol"`` or ``"error"``. ``reply``
    is what the worker said for an ``"error"``: the exception's type, text and where.
    """

    def __init__(self, kind: str, detail: str, reply: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.reply = dict(reply or {})


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder only this user can open, in memory where that has room; removed at the end."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > _ROOM
    home = shared if roomy else Path(tempfile.gettempdir())
    _sweep(home)
    with tempfile.TemporaryDirectory(
        prefix=f"{_FOLDER}{os.getpid()}-", dir=home, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def _sweep(home: Path) -> None:
    """Removes what judges that were killed have left."""
    for folder in home.glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


# A process keeps the memory that it frees, as one does after a while where its heap happens to allow it:
# where not, every call waits for pages, and a short one takes up to twice as long. Large blocks come and go.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


# The processors that a thread may run on, its niceness and its policy.
_Scheduled = tuple[frozenset[int], int, int]


def inherited() -> dict[str, str]:
    """This process's environment without what would change a candidate's precision, or have its threads spin.

    Threads of a library that spin with nothing to do look like work in the background.
    """
    kept = {name: value for name, value in os.environ.items() if name not in (*FROM_OUTSIDE, *_SPINNING)}
    if kept.get("OMP_WAIT_POLICY", "").lower() == "active":
        del kept["OMP_WAIT_POLICY"]
    return kept


def worker_command(role: str, file: int, device: str, threads: int) -> list[str]:
    """The command line of a worker; ``file`` is its end of the socket."""
    words = ["-m", "kernels.evaluate.workers.entry", "--role", role, "--fd", str(file)]
    return [sys.executable, *words, "--device", device, "--threads", str(threads)]


@dataclass
class Worker:
    """One worker process. ``seconds`` of a request are measured by the judge's own clock."""

    role: str
    folder: Path
    limits: Limits
    device: str
    threads: int
    command: Callable[[str, int, str, int], Sequence[str]] = worker_command
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        self._number = 0
        self._stopped = self._closed = False
        self._scheduled: dict[int, _Scheduled] = {}
        # What somebody changed of it while it was stopped; it cannot have done that itself.
        self.rescheduled = ""
        self._outside = 0.0
        self.failure: WorkerFailed | None = None
        root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        # One count of threads for everybody, whichever library starts them.
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        # What leaves the session is still known by this mark in its environment.
        self._mark = f"{_MARK}={secrets.token_hex(8)}"
        environment = {
            **inherited(),
            **dict([self._mark.split("=")]),
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            # What torch's profiler says of itself is nothing the candidate printed.
            "KINETO_LOG_LEVEL": "99",
            **_MALLOC,
            **counts,
            **self.environment,
        }
        try:
            self._process = subprocess.Popen(
                self.command(self.role, theirs.fileno(), self.device, self.threads),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
        finally:
            theirs.close()
            os.close(writing)
        self._channel = Channel(ours)
        self._log = _LogReader(reading)

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group and session."""
        return self._process.pid

    @property
    def outside_s(self) -> float:
        """How long the last request took, from sending it to having its reply."""
        return self._outside

    def log(self) -> Log:
        """What it has printed: head and tail."""
        return self._log.text()

    def request(self, do: str, /, *, seconds: float | None = None, **words: Any) -> dict[str, Any]:
        """Ask for ``do`` and return the reply. Raises :class:`WorkerFailed`, and again once it is dead."""
        if self.failure is not None:
            raise self.failure
        self.resume()
        self._number += 1
        limit = self.limits.seconds if seconds is None else seconds
        start = self.clock()
        deadline = time.monotonic() + limit
        try:
            self._channel.send({"id": self._number, "do": do, **words}, deadline)
            reply = self._channel.receive(deadline, self._watch)
            self._outside = self.clock() - start
        except ChannelTimeout:
            raise self._ended("timeout", f"gave no answer to {do!r} within {limit:g} s") from None
        except ChannelClosed:
            raise self._dead(do) from None
        except Malformed as error:
            raise self._ended("protocol", f"answered {do!r} with {error}") from None
        if reply.get("id") != self._number:
            raise self._ended("protocol", f"answered {do!r} with a reply to something else")
        if reply.get("error") is not None:
            said = reply["error"] if isinstance(reply["error"], dict) else {}
            raise WorkerFailed("error", _line(said.get("text")), said)
        return reply

    def started(self) -> None:
        """Wait until it answers; importing torch is nobody's fault and not in anybody's time limit."""
        self.request("ping", seconds=_START_SECONDS)

    def cpu_seconds(self) -> float:
        """CPU time that it and its living children have used so far, in ticks of the system's clock."""
        ticks = sum(int(parts[11]) + int(parts[12]) for _, parts in _processes() if parts[3] == str(self.pid))
        return ticks / os.sysconf("SC_CLK_TCK")

    def pause(self) -> None:
        """Stop it from running, its threads and children too, while others are measured."""
        if self.failure is None and not self._stopped:
            self._signal(signal.SIGSTOP)
            self._stopped = True
            self._scheduled = _scheduling(self.pid)

    def resume(self) -> None:
        """Let it run again."""
        if self._stopped:
            self.rescheduled = self.rescheduled or _difference(self._scheduled, _scheduling(self.pid))
            self._signal(signal.SIGCONT)
            self._stopped = False

    def close(self) -> None:
        """End it and everything it started, whatever state it is in."""
        if self.failure is None:
            self.failure = WorkerFailed("died", "closed by the judge")
        if self._closed:
            return
        self._closed = True
        self._kill()
        self._channel.close()
        self._log.close()

    def _watch(self) -> None:
        """Raises when the worker's processes together hold too much memory, or are too many."""
        count, resident = _use_of(self.pid)
        if self.limits.memory_bytes and resident > self.limits.memory_bytes:
            held, allowed = resident / 1e9, self.limits.memory_bytes / 1e9
            raise self._ended("memory", f"held {held:.1f} GB of memory; it may hold {allowed:.1f} GB")
        if count > _MOST_PROCESSES:
            raise self._ended("died", f"started {count} processes; it may have {_MOST_PROCESSES}")

    def _dead(self, do: str) -> WorkerFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.poll()
        if code is None:
            return self._ended("died", f"closed its connection during {do!r}")
        if code == -signal.SIGKILL:
            return self._ended(
                "memory", f"was killed from outside during {do!r}, as the system does for memory"
            )
        if code < 0:
            return self._ended("died", f"died of {_signal_name(-code)} during {do!r}")
        return self._ended("died", f"ended its process with exit code {code} during {do!r}")

    def _ended(self, kind: str, detail: str) -> WorkerFailed:
        self.failure = WorkerFailed(kind, detail)
        self._kill()
        return self.failure

    def _kill(self) -> None:
        for _ in range(20):
            self._signal(signal.SIGKILL)
            if not _kill_strays(self.pid, self._mark):
                break
        # A driver that cannot stop what runs on its GPU keeps the process, and must not keep the judge.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def _signal(self, number: int) -> None:
        # While the leader is not waited for, its id cannot belong to another group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class _LogReader:
    """Drains a pipe so that its writer never blocks, and keeps the head and the tail."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._wake, self._waker = os.pipe()
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        self._lock = threading.Lock()
        os.set_blocking(reading, False)
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        ending = False
        while True:
            if not ending:
                ready, _, _ = select.select([self._reading, self._wake], [], [])
                ending = self._wake in ready
            try:
                part = os.read(self._reading, 1 << 16)
            except BlockingIOError:
                if ending:
                    return
                continue
            self._keep(part)
            if not part:
                return

    def _keep(self, part: bytes) -> None:
        with self._lock:
            self._total += len(part)
            room = _KEPT - len(self._head)
            self._head += part[:room]
            self._tail = (self._tail + part[room:] if room > 0 else self._tail + part)[-_KEPT:]

    def text(self) -> Log:
        with self._lock:
            head, tail, total = bytes(self._head), bytes(self._tail), self._total
        cut = total - len(head) - len(tail)
        middle = f"\n... {cut} bytes left out ...\n".encode() if cut > 0 else b""
        return Log((head + middle + tail).decode("utf-8", "replace"), total)

    def close(self) -> None:
        os.close(self._waker)
        self._thread.join()
        os.close(self._reading)
        os.close(self._wake)


# -- processes ---------------------------------------------------------------------------------


def _use_of(session: int) -> tuple[int, int]:
    """How many processes the session has, and the bytes they hold resident, without shared pages."""
    count = resident = 0
    for pid, parts in _processes():
        if parts[3] == str(session):
            count += 1
            with contextlib.suppress(OSError, ValueError, IndexError):
                pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
                resident += (int(pages[1]) - int(pages[2])) * _PAGE
    return count, resident


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Each process with its state, parent, group, session, ... as the fields of /proc/PID/stat."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
                yield int(name), text.rpartition(")")[2].split()


def _scheduling(pid: int) -> dict[int, _Scheduled]:
    """How the system runs each thread of the process, and the judge's first one."""
    threads = [os.getpid()]
    with contextlib.suppress(OSError):
        threads += map(int, os.listdir(f"/proc/{pid}/task"))
    found = {}
    for thread in threads:
        with contextlib.suppress(OSError):  # it may end meanwhile
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            found[thread] = (frozenset(os.sched_getaffinity(thread)), nice, os.sched_getscheduler(thread))
    return found


def _difference(before: Mapping[int, _Scheduled], after: Mapping[int, _Scheduled]) -> str:
    """The first thread that is run otherwise; none where the judge is too, as when a container shrinks."""
    known = before.keys() & after.keys()
    changed = [thread for thread in sorted(known) if before[thread] != after[thread]]
    if not changed or os.getpid() in changed:
        return ""
    words = [
        f"processors {len(processors)}, niceness {nice}, policy {policy}"
        for processors, nice, policy in (before[changed[0]], after[changed[0]])
    ]
    return f"{words[0]} before, {words[1]} after"


def _kill_strays(session: int, mark: str) -> bool:
    """Kills what is of ``session``, descends from it or carries ``mark``; whether it was more than one."""
    table = [(pid, int(parts[1]), int(parts[3]), parts[0]) for pid, parts in _processes()]
    family = {session, *(pid for pid, _, _, _ in table if _carries(pid, mark))}
    grown = True
    while grown:
        found = {
            pid for pid, parent, of, _ in table if pid not in family and (of == session or parent in family)
        }
        family |= found
        grown = bool(found)
    alive = {pid for pid, _, _, state in table if pid in family and state not in "ZX"}
    for pid in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(alive - {session})


def _carries(pid: int, mark: str) -> bool:
    with contextlib.suppress(OSError):
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _line(text: Any) -> str:
    """The first line that says something, short enough for a table."""
    lines = [line.strip() for line in str(text or "no message").splitlines() if line.strip()]
    return (lines or ["no message"])[0][:500]
