"""The line that says what is compiling: where it appears, and where it does not."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from jit_support import child_environment

from kernels.jit import progress

# The slow part is a future, so that what is shown does not hang on how long a compiler takes.
CODE = """
import sys, threading
from concurrent.futures import Future
from kernels.jit import progress
future = Future()
if len(sys.argv) > 1:
    threading.Timer(float(sys.argv[1]), future.set_result, [None]).start()
else:
    future.set_result(None)
progress.wait_for({"tiny-fill-x86-64-v3": future})
print("done")
"""


def run_on_a_terminal(*arguments: str) -> tuple[str, str]:
    """Standard output, and what appears on a terminal that is standard error."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        env=child_environment(TERM="xterm", COLUMNS="100"),
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output, shown.decode()


def test_terminal_shows_what_is_compiling_and_for_how_long() -> None:
    output, shown = run_on_a_terminal("1.0")
    assert output == "done\n"
    assert len(set(re.findall(r"compiling tiny-fill-x86-64-v3  (\d+\.\d) s", shown))) > 1
    assert shown.endswith("\x1b[2K")  # and takes it away


def test_terminal_stays_silent_when_nothing_is_waited_for() -> None:
    assert run_on_a_terminal() == ("done\n", "")


def test_silent_when_output_is_no_terminal() -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE, "0.5"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (result.stdout, result.stderr) == ("done\n", "")


class Notebook:
    """An IPython with a kernel behind it; ``shown`` is what its one display held, one after the other."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.displays = 0

    def modules(self) -> dict[str, types.ModuleType]:
        ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        return {"IPython": ipython, "IPython.display": display}

    def display(self, bundle: dict[str, str], raw: bool, display_id: bool) -> Notebook:
        assert raw and display_id
        self.displays += 1
        self.update(bundle, raw)
        return self

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        self.shown.append(bundle["text/plain"])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    notebook = Notebook()
    for name, module in notebook.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    yield notebook


def later(seconds: float, result: Any = None, error: Exception | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    finish = (lambda: future.set_exception(error)) if error else (lambda: future.set_result(result))
    threading.Timer(seconds, finish).start()
    return future


def test_notebook_updates_one_display(notebook: Notebook) -> None:
    progress.wait_for({"one": later(0.3), "two": later(0.7)})
    assert notebook.displays == 1
    assert notebook.shown[0].startswith("compiling one, two  ")
    assert any(text.startswith("compiling two  ") for text in notebook.shown)
    assert notebook.shown[-1].startswith("compiled one, two  ") and notebook.shown[-1].endswith(" s")


def test_notebook_stays_silent_when_nothing_is_waited_for(notebook: Notebook) -> None:
    done: Future[None] = Future()
    done.set_result(None)
    progress.wait_for({"one": done})
    progress.wait_for({})
    assert notebook.shown == []


def test_failure_ends_the_wait(notebook: Notebook) -> None:
    never: Future[None] = Future()
    progress.wait_for({"bad": later(0.3, error=ValueError("no")), "never": never})
    assert notebook.shown[-1].startswith("cannot compile bad  ") and not never.done()


def test_a_second_caller_waits_silently(notebook: Notebook) -> None:
    first = threading.Thread(target=progress.wait_for, args=({"first": later(0.8)},))
    first.start()
    while not notebook.shown:
        pass
    progress.wait_for({"second": later(0.3)})
    first.join()
    assert notebook.displays == 1 and not any("second" in text for text in notebook.shown)
    assert progress._in_use.acquire(blocking=False)
    progress._in_use.release()


def test_plain_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ipython = types.ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    ipython.get_ipython = lambda: types.SimpleNamespace()  # type: ignore[attr-defined]
    assert not progress._in_notebook()
    ipython.get_ipython = lambda: None  # type: ignore[attr-defined]
    assert not progress._in_notebook()
