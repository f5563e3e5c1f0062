"""Starts workers of the judge by forking a process that has imported torch already.

Importing torch costs a worker several seconds of one core, and the proof starts hundreds.
A nursery is one process that imports what workers import and then forks one for each
request; it never loads a candidate itself, and touches no GPU, so that they may.
:meth:`Nursery.start` takes the arguments of ``subprocess.Popen`` that the judge uses and
returns what the judge uses of a ``Popen``. A forked worker has what a started one has: a
session of its own, its own environment, output and socket, and no way to another's memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.evaluate.workers.isolation import inherited

_MOST_BYTES = 1 << 20


class Nursery:
    """The side of the judge: starts the process, and asks it for workers. Safe to use from threads."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self._lock = ours, threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**inherited(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()

    def as_subprocess(self) -> types.SimpleNamespace:
        """What stands for the module ``subprocess`` where the judge starts its workers."""
        return types.SimpleNamespace(
            Popen=self.start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
        )

    def start(self, command: Sequence[str], **words: Any) -> _Worker:
        """A worker of ``command``, which runs ``kernels.evaluate.workers.entry``."""
        assert command[1:3] == ["-m", "kernels.evaluate.workers.entry"]
        files = [words["stdout"], *words["pass_fds"]]
        pid = self.ask({"arguments": command[3:], "environment": dict(words["env"])}, files)
        return _Worker(self, pid)

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        """Send one request, with open files, and return the answer."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
            answer = self._socket.recv(_MOST_BYTES)
        if not answer:
            raise OSError("the nursery has ended")
        return json.loads(answer)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait()


class _Worker:
    """What the judge uses of ``subprocess.Popen``."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
            time.sleep(0.005)
        return code


# -- the process that forks ----------------------------------------------------------------------


def _serve(file: int) -> None:
    import torch  # noqa: F401

    from kernels.evaluate.workers import entry as worker  # noqa: F401

    ours = socket.socket(fileno=file)
    while True:
        text, files, _, _ = socket.recv_fds(ours, _MOST_BYTES, 8)
        if not text:
            return
        request = json.loads(text)
        if "ended" in request:
            answer = _ended(request["ended"])
        else:
            answer = os.fork()
            if answer == 0:
                ours.close()
                _be_worker(request, files)
            for each in files:
                os.close(each)
        ours.send(json.dumps(answer).encode())


def _ended(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _be_worker(request: Mapping[str, Any], files: list[int]) -> None:
    """Become what ``python -m kernels.evaluate.workers.entry`` would be, and never return."""
    from kernels.evaluate.workers import entry as worker

    code = 1
    try:
        os.setsid()
        output, channel = files
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.clear()
        os.environ.update(request["environment"])
        arguments = list(request["arguments"])
        arguments[arguments.index("--fd") + 1] = str(channel)
        sys.argv = ["kernels.evaluate.workers.entry", *arguments]
        sys.modules["__main__"] = worker
        code = worker.main(arguments)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(int(sys.argv[1]))
