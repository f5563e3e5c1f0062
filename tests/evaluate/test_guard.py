"""The filter that keeps a candidate from its judge, and the seal that sees replaced functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
START = """
import os, resource, signal, subprocess, sys
from kernels.evaluate.workers.guard import guard
parent = os.getppid()
"""
PROC = "os.open(f'/proc/{parent}', os.O_RDONLY)"
REFUSED = {
    "kill": "os.kill(parent, signal.SIGKILL)",
    "its group": "os.killpg(os.getpgid(parent), signal.SIGKILL)",
    "everyone": "os.kill(-1, 0)",
    "process descriptor": "os.pidfd_open(parent)",
    "signal through /proc": f"signal.pidfd_send_signal({PROC}, signal.SIGKILL)",
    "limit": "resource.prlimit(parent, resource.RLIMIT_CPU, (0, 0))",
    "processors": "os.sched_setaffinity(parent, {min(os.sched_getaffinity(0))})",
    "policy": "os.sched_setscheduler(parent, os.SCHED_BATCH, os.sched_param(0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, parent, 5)",
    "priority of its group": "os.setpriority(os.PRIO_PGRP, os.getpgid(parent), 5)",
    "priority of its user": "os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_USER, 0))",
    "from a child": (
        "subprocess.run([sys.executable, '-c', f'import os; os.kill({parent}, 9)'], check=True)"
    ),
}
LEFT = {
    "itself": "os.kill(os.getpid(), 0)",
    "its own group": "os.killpg(os.getpgid(0), 0)",
    "its child": "child = subprocess.Popen(['sleep', '60']); child.kill(); assert child.wait() == -9",
    "its own limit": "resource.prlimit(0, resource.RLIMIT_CORE)",
    "its own processors": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "its own thread's": "os.sched_setaffinity(os.getpid(), {min(os.sched_getaffinity(0))})",
    "its own priority": "os.nice(1); os.setpriority(os.PRIO_PROCESS, os.getpid(), 2)",
    "a child in its session": (
        "own = 'import os; print(os.getsid(0), os.getpgid(0))'\n"
        "said = subprocess.check_output([sys.executable, '-c', own], start_new_session=True, text=True)\n"
        "assert said.split() == [str(os.getsid(0)), str(os.getpgid(0))]"
    ),
    "a fork in its group": (
        "if os.fork() == 0:\n"
        "    os.setpgid(0, 0)\n"
        "    os._exit(os.getpgid(0) == os.getpid())\n"
        "assert os.wait()[1] == 0"
    ),
}


def _run(code: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` as a worker of a process in a session of its own, which prints that it lived."""
    judge = "import subprocess, sys; done = subprocess.run([sys.executable, '-c', sys.argv[1]], text=True, "
    judge += "capture_output=True, start_new_session=True); print('lived', done.returncode, done.stderr)"
    return subprocess.run(
        [sys.executable, "-c", judge, START + code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        timeout=60,
    )


def test_without_the_filter_the_judge_is_killed() -> None:
    assert _run("os.kill(parent, signal.SIGKILL)").returncode == -9


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call: str) -> None:
    done = _run(f"assert guard(parent) == ''\n{call}")
    assert "lived 1" in done.stdout
    assert "PermissionError" in done.stdout


@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_what_is_left(call: str) -> None:
    done = _run(f"assert guard(parent) == ''\n{call}")
    assert "lived 0" in done.stdout, done.stdout


EXCHANGE = "kernels.evaluate.workers.exchange"
SEALED = {
    "time.perf_counter = lambda: 0.0": "time.perf_counter",
    "torch.Tensor.untyped_storage = lambda self: None": "Tensor.untyped_storage",
    "json.dumps = str": "json.dumps",
    "import builtins; builtins.all = lambda values: True": "builtins.all",
    "exchange.write_value = print": f"{EXCHANGE}.write_value",
    "exchange.write_value.__code__ = (lambda *a, **k: {}).__code__": f"{EXCHANGE}.write_value",
    "exchange.Channel.send = print": f"{EXCHANGE}.Channel.send",
    "dispatch.TorchDispatchMode().__enter__()": "torch's dispatch calls (mode TorchDispatchMode)",
    "torch.overrides.TorchFunctionMode().__enter__()": "torch's function calls (mode TorchFunctionMode)",
    "torch.utils._device.DeviceContext.__torch_function__ = print": "DeviceContext.__torch_function__",
    "sys.setprofile(None)": "the interpreter's tracer (sys.setprofile)",
    "import threading; t = threading.Thread(target=sys.settrace, args=(None,)); t.start(); t.join()": (
        "the interpreter's tracer (sys.settrace)"
    ),
    "torch.set_default_dtype(torch.float64); torch.set_num_threads(1)": "",
    "torch.set_default_device('cpu')": "",
    "torch.jit.script(torch.nn.Linear(2, 2))": "",
}


# Each change is made in a fork: importing torch for each would take most of a minute.
FORKS = """
import json, os, sys, time, torch
from torch.utils import _python_dispatch as dispatch
from kernels.evaluate.workers import exchange, seal
check, say = seal.seal(), os.write
for change in json.loads(sys.argv[1]):
    if os.fork() == 0:
        assert check() == []
        exec(change)
        say(1, (' '.join(check()) + chr(10)).encode())
        os._exit(0)
    os.wait()
"""


def test_the_seal_names_what_was_replaced() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, json.dumps(list(SEALED))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert dict(zip(SEALED, done.stdout.splitlines(), strict=True)) == SEALED


OVER = """
import torch
from kernels.evaluate.workers.hooks import registered
added = registered()
other = torch.library.Library("other_than_aten", "DEF")
other.define("clone(Tensor x) -> Tensor")
other.impl("clone", lambda x: x, "CPU")
torch.compile(lambda x: x.clone().view(-1) + 1, backend="aot_eager")(torch.ones(3))
print(added())
aten = torch.library.Library("aten", "IMPL")
aten.impl("clone", lambda x, **_: x, "CPU")
print(*added())
"""


def test_kernels_registered_over_those_that_copies_go_through_are_named() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OVER],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    nothing, added = done.stdout.splitlines()
    assert nothing == "[]"
    assert added.startswith("aten::clone (CPU: registered at ")
