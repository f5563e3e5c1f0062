"""Workers that misbehave in every way become a WorkerFailed; nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kernels.evaluate.workers.isolation import Limits, Worker, WorkerFailed, inherited, private_folder

ROOT = Path(__file__).resolve().parent.parent.parent

# A worker without torch, which starts at once: answers with what its body makes of a request.
HEAD = """
import json, os, socket, struct, sys, time, signal, threading
end = socket.socket(fileno=int(sys.argv[1]))
def receive():
    size = struct.unpack(">I", end.recv(4, socket.MSG_WAITALL))[0]
    return json.loads(end.recv(size, socket.MSG_WAITALL))
def send(message):
    data = json.dumps(message).encode()
    end.sendall(struct.pack(">I", len(data)) + data)
def answer():
    send({"id": receive()["id"]})
"""


def command_of(body: str) -> Callable[[str, int, str, int], Sequence[str]]:
    program = HEAD + textwrap.dedent(body)
    return lambda role, file, device, threads: [sys.executable, "-S", "-c", program, str(file)]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(body: str, **limits: float) -> Worker:
        one = Worker(
            "candidate",
            tmp_path,
            Limits(limits.get("seconds", 20), int(limits.get("memory_bytes", 0))),
            "cpu",
            1,
            command_of(body),
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("receive(); os._exit(0)", "died", "exit code 0"),
        ("receive(); os._exit(7)", "died", "exit code 7"),
        ("receive(); os.kill(os.getpid(), signal.SIGSEGV)", "died", "SIGSEGV"),
        ("receive(); os.kill(os.getpid(), signal.SIGKILL)", "memory", "killed from outside"),
        ("receive(); os.abort()", "died", "SIGABRT"),
        ("receive(); end.close(); time.sleep(60)", "died", "closed its connection"),
        ("receive(); raise SystemExit(3)", "died", "exit code 3"),
        ("receive()\nwhile True: pass", "timeout", "within 1 s"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); receive(); time.sleep(60)", "timeout", "within 1 s"),
        ("receive(); end.sendall(b'garbage and more')", "protocol", "message"),
        ("receive(); end.sendall(b'\\xff\\xff\\xff\\xff')", "protocol", "4294967295"),
        ("receive(); end.sendall(struct.pack('>I', 9) + b'{}'); os._exit(0)", "died", "exit code 0"),
        ("send({'id': 5}); receive(); time.sleep(60)", "protocol", "something else"),
        ("receive(); send([1])", "protocol", "no JSON object"),
        ("receive(); os.write(1, b'{\"id\": 1}'); time.sleep(60)", "timeout", "within 1 s"),
    ],
)
def test_ways_to_fail(body: str, kind: str, said: str, worker: Callable[..., Worker]) -> None:
    one = worker(body, seconds=1)
    with pytest.raises(WorkerFailed) as raised:
        one.request("call")
    assert raised.value.kind == kind
    assert said in raised.value.detail
    assert not alive(one.pid)
    # It stays dead: every later request says the same.
    with pytest.raises(WorkerFailed) as again:
        one.request("ping")
    assert again.value is raised.value


def test_a_reply_and_its_error(worker: Callable[..., Worker]) -> None:
    one = worker(
        "answer(); send({'id': receive()['id'], 'error': {'text': 'E: no\\nmore', 'type': 'E'}}); answer()"
    )
    assert one.request("ping") == {"id": 1}
    assert one.outside_s > 0
    with pytest.raises(WorkerFailed) as raised:
        one.request("call")
    assert raised.value.kind == "error"
    assert raised.value.detail == "E: no"
    assert raised.value.reply["type"] == "E"
    assert one.request("ping") == {"id": 3}


@pytest.mark.parametrize("error", ["3", "[]", "'x'", "{'text': ['a']}", "{'bases': 4, 'text': None}"])
def test_errors_that_are_no_errors(error: str, worker: Callable[..., Worker]) -> None:
    from kernels.evaluate.outcome import failure_finding

    one = worker(f"send({{'id': receive()['id'], 'error': {error}}})")
    with pytest.raises(WorkerFailed) as raised:
        one.request("call")
    assert failure_finding("call", raised.value).evidence["status"] == "RUNTIME_ERROR"


def test_memory_is_watched(worker: Callable[..., Worker]) -> None:
    body = "receive()\nheld = []\nwhile True: held.append(b'x' * (4 << 20)); time.sleep(0.005)"
    one = worker(body, memory_bytes=200e6)
    with pytest.raises(WorkerFailed) as raised:
        one.request("call")
    assert raised.value.kind == "memory"
    assert "it may hold 0.2 GB" in raised.value.detail


def test_memory_of_children_counts(worker: Callable[..., Worker]) -> None:
    body = """
    receive()
    for _ in range(4):
        if os.fork() == 0:
            held = b'x' * (100 << 20)
            time.sleep(60)
    time.sleep(60)
    """
    one = worker(body, memory_bytes=250e6)
    with pytest.raises(WorkerFailed) as raised:
        one.request("call")
    assert raised.value.kind == "memory"


def test_a_flood_is_cut_and_blocks_nobody(worker: Callable[..., Worker]) -> None:
    one = worker("""
    os.write(1, b'first')
    for _ in range(2000): os.write(2, b'x' * 10000)
    os.write(1, b'last')
    answer()
    """)
    one.request("call")
    log = one.log()
    for _ in range(50):
        if log.total_bytes >= 20_000_009:
            break
        time.sleep(0.05)
        log = one.log()
    assert log.total_bytes == 20_000_009
    assert log.text.startswith("first")
    assert log.text.endswith("last")
    assert len(log.text) < 40_000
    assert "bytes left out" in log.text


@pytest.mark.parametrize(
    "body",
    [
        "if os.fork() == 0: time.sleep(600)",
        "if os.fork() == 0:\n  os.setsid()\n  time.sleep(600)",
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n  os._exit(0)\nos.wait()",
    ],
)
def test_children_are_ended_too(body: str, worker: Callable[..., Worker], tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    body = body.replace("time.sleep(600)", f"{note}; time.sleep(600)")
    one = worker(f"{body}\ntime.sleep(0.3); answer(); receive()")
    one.request("call")
    child = int((tmp_path / "pid").read_text())
    assert alive(child)
    one.close()
    for _ in range(40):
        if not alive(child):
            break
        time.sleep(0.05)
    assert not alive(child)


def test_paused_workers_do_not_run(worker: Callable[..., Worker], tmp_path: Path) -> None:
    path = tmp_path / "count"
    body = f"""
    def count():
        n = 0
        while True:
            n += 1; open({str(path)!r}, "w").write(str(n)); time.sleep(0.001)
    threading.Thread(target=count, daemon=True).start()
    while True: answer()
    """
    one = worker(body)
    one.request("ping")
    one.pause()
    time.sleep(0.1)
    before = path.read_text()
    time.sleep(0.3)
    assert path.read_text() == before
    one.request("ping")
    time.sleep(0.3)
    assert path.read_text() != before


def test_folders_are_private_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        stale = folder.parent / "kernels-judge-999999999-left"
        stale.mkdir(exist_ok=True)
        (folder / "file").write_text("x")
    assert not folder.exists()
    with private_folder():
        assert not stale.exists()


def test_a_killed_judge_leaves_no_worker(tmp_path: Path) -> None:
    """The real worker asks the kernel to end it with its parent."""
    program = f"""
    import sys, time
    from pathlib import Path
    from kernels.evaluate.workers.isolation import Limits, Worker
    one = Worker("reference", Path({str(tmp_path)!r}), Limits(60), "cpu", 1)
    one.started()
    print(one.pid, flush=True)
    time.sleep(600)
    """
    judge = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert judge.stdout is not None
    pid = int(judge.stdout.readline())
    assert alive(pid)
    os.kill(judge.pid, signal.SIGKILL)
    judge.wait()
    judge.stdout.close()
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)


def test_threads_are_not_told_to_spin_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a library whose idle threads spin for ever every candidate would work in the background."""
    for name, value in (
        ("OMP_WAIT_POLICY", "ACTIVE"),
        ("GOMP_SPINCOUNT", "infinite"),
        ("KMP_BLOCKTIME", "9"),
    ):
        monkeypatch.setenv(name, value)
        assert name not in inherited()
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert inherited()["OMP_WAIT_POLICY"] == "passive"


CHANGES: dict[str, Callable[[int], object]] = {
    "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 5),
    "policy": lambda pid: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_how_a_stopped_worker_is_run_is_seen(
    worker: Callable[..., Worker], change: Callable[[int], object]
) -> None:
    one = worker("answer(); answer(); os.nice(1); answer(); answer()")
    for _ in range(4):
        one.request("ping")
        one.pause()
    assert one.rescheduled == ""
    change(one.pid)
    one.resume()
    assert " before, " in one.rescheduled
