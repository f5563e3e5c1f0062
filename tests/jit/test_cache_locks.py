"""Who builds, who waits, and what a long wait says."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_problem
from jit_support import child_environment

from kernels.jit import build, cache, warm
from kernels.jit.cache import locks


def test_lock_is_exclusive_and_leaves_no_file(cache_dir: Path) -> None:
    inside = []

    def work() -> None:
        for _ in range(20):
            with cache.lock(cache_dir, "digest"):
                inside.append(1)
                assert len(inside) == 1
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    failures: list[object] = []
    previous, threading.excepthook = threading.excepthook, failures.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = previous
    assert not failures
    assert list((cache_dir / "locks").iterdir()) == []


def test_lock_of_a_killed_process_is_free_though_its_child_lives(cache_dir: Path) -> None:
    """A child forked while the lock is held keeps no copy of it."""
    code = f"""
import os, signal, sys, time
from pathlib import Path
from kernels.jit import cache
with cache.lock(Path({str(cache_dir)!r}), "digest"):
    if os.fork() == 0:
        print("forked", flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=child_environment(), stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() == b"forked\n"
        parent.kill()
        parent.wait()
        taken = threading.Event()

        def take() -> None:
            with cache.lock(cache_dir, "digest"):
                taken.set()

        threading.Thread(target=take, daemon=True).start()
        assert taken.wait(30)
    finally:
        os.killpg(parent.pid, 9)
        assert parent.stdout is not None
        parent.stdout.close()


HOLDER = """
import sys
from pathlib import Path
from kernels.jit import cache
with cache.lock(Path(sys.argv[1]), "digest", "tiny-binding"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(cache_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(cache_dir)],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def close_after(seconds: float, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    timer = threading.Timer(seconds, process.stdin.close)
    timer.daemon = True
    timer.start()


def test_a_long_wait_names_the_holder_once_and_goes_on(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(locks, "_WARN_AFTER_S", 0.1)
    close_after(1.0, holder)
    with pytest.warns(RuntimeWarning) as caught, cache.lock(cache_dir, "digest"):
        holder.wait(30)  # it was waited for, not overtaken
    assert len(caught) == 1
    said = str(caught[0].message)
    assert f"held by process {holder.pid} (" in said
    assert sys.executable in said and "which builds tiny-binding" in said
    assert str(cache_dir / "locks" / "digest") in said
    assert list((cache_dir / "locks").iterdir()) == []


def test_a_holder_that_is_stopped_is_said_to_be(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(locks, "_WARN_AFTER_S", 0.1)
    holder.send_signal(signal.SIGSTOP)
    timer = threading.Timer(1.0, holder.kill)  # and its lock goes with it
    timer.start()
    with (
        pytest.warns(RuntimeWarning, match=rf"process {holder.pid} \(stopped: "),
        cache.lock(cache_dir, "digest"),
    ):
        timer.join()


def test_a_long_wait_survives_warnings_that_are_errors(
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    holder: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(locks, "_WARN_AFTER_S", 0.1)
    close_after(0.5, holder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cache.lock(cache_dir, "digest"):
            pass
    assert capsys.readouterr().err.count(f"process {holder.pid} ") == 1


def test_a_free_lock_and_a_short_wait_say_nothing(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(locks, "tell", said.append)
    close_after(0.3, holder)
    with cache.lock(cache_dir, "digest"):
        pass
    monkeypatch.setattr(locks, "_WARN_AFTER_S", 0.0)
    with cache.lock(cache_dir, "digest"):
        pass
    assert said == []


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"12", b"0 h w\n", b"-1 h w\n", b"\xff\x00\n", b"99999999999999999999 h w\n", b"x" * 5000],
)
def test_a_lock_file_that_names_nobody_does_no_harm(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(locks, "_WARN_AFTER_S", 0.05)
    path = cache_dir / "locks" / "digest"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with open(path) as file:  # an older version's holder
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with (
            pytest.warns(RuntimeWarning, match="a process that has not written its PID"),
            cache.lock(cache_dir, "digest", "what"),
        ):
            assert path.read_bytes().startswith(f"{os.getpid()} {os.uname().nodename} what\n".encode())
    assert not path.exists()


def test_a_long_wait_of_a_build_elsewhere_is_told_here(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding that is loaded here is built by a child, whose own output nobody sees."""
    short = "locks.tell = tell\nlocks._WARN_AFTER_S = 0.1\n"
    monkeypatch.setattr(build, "_ELSEWHERE", build._ELSEWHERE.replace("locks.tell = tell\n", short))
    monkeypatch.setattr(warm, "binding_is_loaded", lambda problem: True)
    wanted = build.key(tiny_problem.binding())
    said: list[str] = []
    held, told = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.lock(cache_dir, wanted.digest, "it"):
            held.set()
            told.wait(60)

    def tell(message: str) -> None:
        said.append(message)
        told.set()

    monkeypatch.setattr(locks, "tell", tell)
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    assert build.build(wanted).path.is_file()
    thread.join()
    assert len(said) == 1 and f"process {os.getpid()} (" in said[0] and "which builds it" in said[0]


def test_a_holder_that_is_gone_or_elsewhere_is_said_to_be(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = os.uname().nodename
    path = tmp_path / "lock"
    for content, said in (
        (f"{ended.pid} {here} \n", f"process {ended.pid} (no such process"),
        (f"9999999999 {here} a\tb\n", "process 9999999999 (no such process"),
        (f"{os.getpid()} {here}-not binding\n", f"process {os.getpid()} on {here}-not, which builds binding"),
        (f"{os.getpid()} {here} binding\nleft of a longer one\n", f"process {os.getpid()} ("),
    ):
        path.write_text(content)
        with open(path) as file:
            assert locks._holder(file.fileno()).startswith(said)
