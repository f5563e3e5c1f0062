"""One line that says what is compiling while a caller waits for it.

On a terminal the line is rich's, on standard error; in a notebook it is a display
that updates in place. Anywhere else, and when nothing has to be waited for, nothing
is printed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, Protocol

__all__ = ["wait_for"]

_INTERVAL_S = 0.1


class _Line(Protocol):
    def update(self, text: str) -> None: ...


# One line at a time: a second caller that waits meanwhile waits silently.
_in_use = threading.Lock()


def reset_after_fork() -> None:
    """In a forked child: whoever showed the line is not running here."""
    global _in_use
    _in_use = threading.Lock()


def wait_for(futures: Mapping[str, Future[Any]]) -> None:
    """Return when every future is done or one has failed, showing the names of those running."""
    started = time.perf_counter()
    # What is done at once, such as a library found in the cache, shows nothing.
    if _done(futures, _INTERVAL_S):
        return
    if not _in_use.acquire(blocking=False):
        _done(futures, None)
        return
    guard = _in_use
    try:
        with _line() as line:
            while not _done(futures, _INTERVAL_S if line is not None else None):
                if line is not None:
                    running = [name for name, future in futures.items() if not future.done()]
                    line.update(_text("compiling", running, started))
            if line is not None:
                failed = [name for name, future in futures.items() if future.done() and future.exception()]
                line.update(_text("cannot compile" if failed else "compiled", failed or futures, started))
    finally:
        guard.release()


def _text(what: str, names: Iterable[str], started: float) -> str:
    return f"{what} {', '.join(names)}  {time.perf_counter() - started:.1f} s"


def _done(futures: Mapping[str, Future[Any]], timeout_s: float | None) -> bool:
    done, pending = wait(futures.values(), timeout=timeout_s, return_when=FIRST_EXCEPTION)
    return not pending or any(future.exception() is not None for future in done)


@contextlib.contextmanager
def _line() -> Iterator[_Line | None]:
    if _in_notebook():
        yield _NotebookLine()
    elif sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            yield _TerminalLine(status)
    else:
        yield None


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _TerminalLine:
    def __init__(self, status: Any) -> None:
        self._status = status

    def update(self, text: str) -> None:
        from rich.text import Text

        self._status.update(Text(text))


class _NotebookLine:
    """A display that one cell's output holds; its last words stay there."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, text: str) -> None:
        from IPython.display import display
        from rich.text import Text

        bundle = {"text/plain": Text(text).plain}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
