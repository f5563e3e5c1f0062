"""A machine with too much to do: no evidence against an honest kernel, no cover for a clock that lies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nursery import Nursery

from kernels.evaluate.evaluation import Evaluation
from kernels.evaluate.judge import evaluate
from kernels.evaluate.options import Options
from kernels.evaluate.result import as_json
from kernels.evaluate.subject import find_target
from kernels.evaluate.verify import differences
from kernels.evaluate.workers import isolation
from kernels.evaluate.workers.account import accounted, processors

FOLDER = Path(__file__).resolve().parent
BUSY = "while True: pass"
# Judged with three busy processes on the one processor that it has.
BUSY_PROCESSES = 3
HONEST = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
"""


@contextlib.contextmanager
def one_processor() -> Iterator[None]:
    """This thread and what it starts run on one processor alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Process ids of ``count`` processes that never rest."""
    running = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_where_the_time_of_another_process_went() -> None:
    with one_processor(), busy(2) as (pid, _):
        assert processors() == 1
        time.sleep(0.1)
        start = time.monotonic()
        with accounted(pid) as account:
            time.sleep(0.2)
        taken = time.monotonic() - start
    assert account.waited is not None
    # It was running or waiting all the time; the judge's thread waited as well, for a while.
    assert 0.02 < account.cpu < taken
    assert 0.7 * taken < account.cpu + account.waited < 2.5 * taken


def test_a_thread_that_ended_took_its_record_with_it() -> None:
    code = (
        "import threading\n"
        "def work():\n    for _ in range(300_000): pass\n"
        "while True:\n    one = threading.Thread(target=work); one.start(); one.join()\n"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", code]) as process:
        time.sleep(0.2)
        with accounted(process.pid) as account:
            time.sleep(0.3)
        process.kill()
    assert account.waited is None and account.cpu > 0.02


def test_an_account_of_nobody() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    with accounted(process.pid) as account:
        pass
    assert (account.waited, account.cpu) == (None, 0.0)


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Evaluation]]:
    """The judge on a busy machine."""

    def judge(candidate: str) -> Evaluation:
        (tmp_path / "candidate.py").write_text(candidate, encoding="utf-8")
        reference = FOLDER / "problems" / "level1" / "matmul.py"
        target = find_target("", str(reference), str(tmp_path / "candidate.py"))
        options = Options(
            device="cpu", trials=1, seconds=0.002, compile=False, threads=1, seed=3, parts=("timing",)
        )
        return evaluate(target, options)

    with one_processor(), contextlib.ExitStack() as stack:
        nursery = Nursery()
        stack.callback(nursery.close)
        monkeypatch.setattr(isolation, "subprocess", nursery.as_subprocess())
        judge(HONEST)  # waits until torch is imported
        stack.enter_context(busy(BUSY_PROCESSES))
        yield judge


@pytest.mark.slow
def test_an_honest_kernel_on_a_busy_machine(judged: Callable[[str], Evaluation]) -> None:
    for _ in range(3):
        found = judged(HONEST)
        assert found.status == "PASS", found.reason
        assert differences(as_json(found)) == []
        assert found.timing is not None
        assert any("the machine was busy" in note for note in found.timing.notes)


@pytest.mark.slow
def test_a_clock_that_lies_on_a_busy_machine(judged: Callable[[str], Evaluation]) -> None:
    cheat = (FOLDER / "cheats" / "patched_timer_traceback.py").read_text(encoding="utf-8")
    found = judged(cheat)
    assert (found.status, found.layer) == ("CHEAT", "clock"), found.reason
    assert differences(as_json(found)) == []
