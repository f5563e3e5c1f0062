"""Who builds, who waits, and what survives a fork, a kill and an exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_problem
from jit_support import child_environment

from kernels.errors import CompileError, ToolchainError
from kernels.jit import build, cache, load
from kernels.jit.load import obtain, obtain_all, parallel_builds, stats, submit
from kernels.toolchain import find_cxx


def slow_compiler(folder: Path) -> tuple[Path, Path, Path]:
    """A compiler that waits for a file before each compilation: (compiler, started, go)."""
    folder.mkdir()
    compiler, started, go = folder / "g++", folder / "started", folder / "go"
    compiler.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *main.cpp*) touch {started}; while [ ! -e {go} ]; do sleep 0.02; done;; esac\n'
        f'exec {find_cxx().path} "$@"\n'
    )
    compiler.chmod(0o755)
    return compiler, started, go


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_eight_threads_build_once(cache_dir: Path) -> None:
    before = stats()
    barrier = threading.Barrier(8)

    def work(_: int) -> str:
        barrier.wait()
        return str(obtain(tiny_problem.cpu_spec(8)).path)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1
    after = stats()
    assert after["builds"] - before["builds"] == 1


def test_eight_processes_build_once(
    cache_dir: Path, python: Callable[..., subprocess.CompletedProcess]
) -> None:
    """They are forked after the toolkit is imported, and start together on an empty cache."""
    code = """
import os, time, torch, tiny_problem
from kernels.jit.load import load, stats
start = time.monotonic() + 0.5
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        time.sleep(max(0, start - time.monotonic()))
        answer = load(tiny_problem.cpu_spec(8)).kernel_prepare()
        os.write(1, f"{answer} {stats()['builds']}\\n".encode())
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""
    lines = python(code).stdout.split("\n")[:-1]
    assert sorted(lines) == ["8 0"] * 7 + ["8 1"]
    assert list((cache_dir / "work").iterdir()) == [] and list((cache_dir / "locks").iterdir()) == []


def test_killed_build_is_built_by_the_next(cache_dir: Path, tmp_path: Path) -> None:
    compiler, started, go = slow_compiler(tmp_path / "slow")
    code = """
import tiny_problem
from kernels.jit.load import load
print(load(tiny_problem.cpu_spec(8)).kernel_prepare())
"""
    command = [sys.executable, "-c", code]
    environment = child_environment(CXX=str(compiler))
    killed = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        wait_until(started.exists)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        (left,) = (cache_dir / "work").iterdir()
        assert cache.entries() == []
    finally:
        os.killpg(killed.pid, signal.SIGKILL)  # the compiler it started lives on
    go.touch()
    again = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    assert again.stdout == b"8\n"
    assert [entry.ok for entry in cache.entries()] == [True]
    assert cache.prune().stale_builds == 1 and not left.exists()


def test_submit_is_joined(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, started, go = slow_compiler(tmp_path / "slow")
    monkeypatch.setenv("CXX", str(compiler))
    before = stats()["builds"]
    future = submit(tiny_problem.cpu_spec(8))
    wait_until(started.exists)
    assert submit(tiny_problem.cpu_spec(8)) is future and not future.done()
    go.touch()
    assert obtain(tiny_problem.cpu_spec(8)).path == future.result().path
    assert stats()["builds"] == before + 1
    assert submit(tiny_problem.cpu_spec(8)).result().cached


def test_submit_raises_nothing(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(submit(tiny_problem.cpu_spec(8, launcher="tiny::gone<1>")).exception(), CompileError)

    def no_cuda() -> int:
        raise ToolchainError("torch is built for CPU only", "install another")

    monkeypatch.setattr(build, "torch_cuda_major", no_cuda)
    assert isinstance(submit(tiny_problem.cuda_spec()).exception(), ToolchainError)


def test_obtain_all_builds_side_by_side(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds are under way at once: each waits for a file that appears when both have started."""
    monkeypatch.setattr(load._state, "slots", threading.BoundedSemaphore(2))
    both = threading.Barrier(2, timeout=60)
    real = build._compile

    def compile_together(*args):
        both.wait()
        return real(*args)

    monkeypatch.setattr(build, "_compile", compile_together)
    built = obtain_all([tiny_problem.cpu_spec(8), tiny_problem.cpu_spec(16), tiny_problem.cpu_spec(8)])
    assert [b.spec.params[1][1] for b in built] == ["8", "16", "8"]
    assert built[0].path == built[2].path != built[1].path


def test_builds_are_bounded(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load._state, "slots", threading.BoundedSemaphore(1))
    running = []
    most = []
    real = build._compile

    def watched(*args):
        running.append(1)
        most.append(len(running))
        try:
            return real(*args)
        finally:
            running.pop()

    monkeypatch.setattr(build, "_compile", watched)
    obtain_all([tiny_problem.cpu_spec(n) for n in (8, 16, 24)])
    assert most == [1, 1, 1]


@pytest.mark.parametrize(
    ("cores", "gigabytes", "jobs", "expected"),
    [
        (8, 100, "", 8),
        (8, 3.5, "", 3),
        (8, 0.2, "", 1),
        (8, 100, "2", 2),
        (2, 100, "64", 2),
        (8, 100, "0", 1),
    ],
)
def test_how_many_build_side_by_side(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: float, jobs: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(load, "_available_bytes", lambda: int(gigabytes * 2**30))
    monkeypatch.setenv("MAX_JOBS", jobs)
    assert parallel_builds() == expected


def test_memory_is_read_from_the_system() -> None:
    assert 0 < load._available_bytes() < 1 << 60


def test_a_container_bounds_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    says = {"cpu.max": "150000 100000", "memory.max": str(5 << 30), "memory.current": str(3 << 30)}
    monkeypatch.setattr(load, "_control_group", says.get)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert load._cores() == 2
    assert load._available_bytes() <= 2 << 30
    says.update({"cpu.max": "max 100000", "memory.max": "max"})
    assert load._cores() == 64
    says.update({"cpu.max": "", "memory.max": "", "memory.current": ""})  # no control group
    assert load._cores() == 64 and load._available_bytes() > 0


def test_obtain_all_raises_the_first_failure_and_builds_the_rest(cache_dir: Path) -> None:
    bad = tiny_problem.cpu_spec(8, launcher="tiny::gone<1>")
    with pytest.raises(CompileError, match="gone"):
        obtain_all([tiny_problem.cpu_spec(8), bad, tiny_problem.cpu_spec(16)])
    assert obtain(tiny_problem.cpu_spec(8)).cached and obtain(tiny_problem.cpu_spec(16)).cached


def test_failure_is_not_remembered(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def missing() -> str:
            raise ToolchainError("no ninja found", "pip install ninja")

        patch.setattr(build, "find_ninja", missing)
        with pytest.raises(ToolchainError, match="no ninja"):
            obtain(tiny_problem.cpu_spec())
    assert not obtain(tiny_problem.cpu_spec()).cached


def test_fork_during_a_build(
    cache_dir: Path, tmp_path: Path, python: Callable[..., subprocess.CompletedProcess]
) -> None:
    """The child finds settings, locks and futures as if no build were under way, and gets its library."""
    compiler, started, go = slow_compiler(tmp_path / "slow")
    code = f"""
import os, time, torch, tiny_problem
from pathlib import Path
from kernels.jit.load import load, stats, submit
started, go = Path({str(started)!r}), Path({str(go)!r})
before = dict(os.environ)
future = submit(tiny_problem.cpu_spec(8))
while not started.exists():
    time.sleep(0.01)
assert dict(os.environ) != before
child = os.fork()
if child == 0:
    assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
    go.touch()
    answer = load(tiny_problem.cpu_spec(8)).kernel_prepare()
    os.write(1, f"child {{answer}} {{stats()['builds']}}\\n".encode())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", load(tiny_problem.cpu_spec(8)).kernel_prepare(), stats()["builds"])
"""
    result = python(code, CXX=str(compiler))
    assert sorted(result.stdout.splitlines()) == ["child 8 0", "parent 8 1"]


def test_fork_while_the_early_build_is_imported(
    cache_dir: Path, python: Callable[..., subprocess.CompletedProcess]
) -> None:
    """The fork waits for an import that registers hooks of its own: the one before the fork is not run."""
    code = """
import logging, os, threading  # logging has such hooks too: torch imports it
from kernels.jit.warm import import_guard
held, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)
def imports():
    with import_guard:
        held.set()
        forking.wait()
        import kernels.jit.surroundings
thread = threading.Thread(target=imports)
thread.start()
held.wait()
for _ in range(2):  # the second fork runs all hooks
    child = os.fork()
    if child == 0:
        from kernels.jit.surroundings import _settings
        with _settings.hold({("environment", "KERNELS_TEST"): "1"}):
            assert os.environ["KERNELS_TEST"] == "1"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
from kernels.jit.surroundings import _settings
with _settings.condition:  # nobody holds it: another thread can take it
    pass
other = threading.Thread(target=_settings.condition.acquire)
other.start()
other.join(10)
assert not other.is_alive()
"""
    assert python(code).stderr == ""


def test_exit_waits_for_a_background_build(
    cache_dir: Path, python: Callable[..., subprocess.CompletedProcess]
) -> None:
    code = """
import tiny_problem
from kernels.jit.load import submit
submit(tiny_problem.cpu_spec(8))
"""
    python(code)
    assert [entry.ok for entry in cache.entries()] == [True]
    assert list((cache_dir / "work").iterdir()) == []


def test_interrupt_reaches_the_caller_and_the_build_goes_on(cache_dir: Path, tmp_path: Path) -> None:
    compiler, started, go = slow_compiler(tmp_path / "slow")
    code = f"""
import tiny_problem
from pathlib import Path
from kernels.jit.load import obtain
try:
    obtain(tiny_problem.cpu_spec(8))
except KeyboardInterrupt:
    Path({str(go)!r}).touch()
    print(obtain(tiny_problem.cpu_spec(8)).path)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=child_environment(CXX=str(compiler)),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(started.exists)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and output.strip().endswith("library.so")


@pytest.mark.slow
def test_binding_is_never_loaded_twice(cache_dir: Path, tmp_path: Path) -> None:
    """Registering the same operators again would end this process."""
    library = load.load(tiny_problem.binding())
    assert cache.clear().entries >= 1
    built = obtain(tiny_problem.binding())  # built by a process of its own
    assert not built.cached and built.path.exists()
    assert load.load(tiny_problem.binding()) is library

    changed = tiny_problem.copy_sources(tmp_path / "changed") / "tiny_binding.cpp"
    changed.write_text(changed.read_text() + "// changed\n")
    with pytest.raises(load.LaunchError, match="start Python anew"):
        load.load(tiny_problem.binding(changed))
    changed.write_text("tiny nonsense")
    with pytest.raises(CompileError, match="nonsense"):
        obtain(tiny_problem.binding(changed))
