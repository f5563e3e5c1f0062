"""The program of a worker process: ``python -m kernels.evaluate.workers.entry --role ROLE --fd N ...``.

It answers the judge's requests one after the other until the judge closes the socket.
Whatever fails inside a request is the reply's ``error``; what ends the process the judge
sees from outside. ``--replay FOLDER`` needs no judge: it loads a candidate and one saved
input and calls it, for profilers that start the program themselves.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the judge is done. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kernels.evaluate.workers.entry")
    parser.add_argument("--role", choices=("candidate", "reference"))
    parser.add_argument("--fd", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--replay", metavar="FOLDER")
    parser.add_argument("--calls", type=int, default=1)
    arguments = parser.parse_args(argv)
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    if arguments.replay:
        from kernels.evaluate.workers.replay import replay

        return replay(arguments.replay, arguments.calls)
    _die_with_the_judge(hidden=arguments.role == "reference")
    import torch

    from kernels.evaluate.precision import lowered
    from kernels.evaluate.workers.exchange import Channel

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    handlers = _handlers(arguments.role, arguments.device)
    precision = lowered(arguments.device)
    from kernels.evaluate.workers.guard import guard
    from kernels.evaluate.workers.seal import seal

    # Nobody doubts the reference, but what slows the candidate's calls must slow those timed beside them.
    unguarded = guard(os.getppid())
    if unguarded and arguments.role == "candidate":
        print(f"the judge is not guarded against signals of this process: {unguarded}", file=sys.stderr)
    replaced = seal()
    serve(Channel(socket.socket(fileno=arguments.fd)), handlers, precision, replaced)
    # A candidate may have left threads that never end; nothing here is left to be tidied.
    os._exit(0)


def serve(
    channel: Any,
    handlers: dict[str, Callable[..., dict[str, Any]]],
    precision: Callable[[], str],
    replaced: Callable[[], list[str]],
) -> None:
    """Answer requests until the other end closes.

    Each reply has what ``precision`` says of float32 products when it is done, and what was
    ``replaced`` under the worker.
    """
    from kernels.evaluate.workers.exchange import ChannelClosed

    send, receive = channel.send, channel.receive
    while True:
        try:
            request = receive()
            number, do = request.pop("id"), request.pop("do")
            try:
                reply = handlers[do](**request)
            except BaseException as error:  # sys.exit and Ctrl-C of a candidate are its answer too
                reply = {"error": explain(error)}
            found = dict.fromkeys([*reply.get("replaced", ()), *replaced()])
            send({"id": number, **reply, "precision": precision(), "replaced": [*found]})
        except ChannelClosed:
            return


def explain(error: BaseException) -> dict[str, Any]:
    """The exception as JSON: type, those it derives from, text, the last lines of its traceback."""
    try:
        text = str(error)
    except Exception as broken:  # an exception may have a __str__ that raises
        text = f"(its message cannot be read: {type(broken).__name__})"
    try:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        trace = ""
    return {
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "text": f"{type(error).__name__}: {text}"[:20_000],
        "traceback": trace[-8_000:],
        "status": getattr(error, "judge_status", ""),
    }


def _handlers(role: str, device: str) -> dict[str, Callable[..., dict[str, Any]]]:
    if role == "candidate":
        from kernels.evaluate.workers.candidate import handlers

        return handlers(device)
    from kernels.evaluate.workers.reference import handlers as reference_handlers

    return reference_handlers(device)


def _die_with_the_judge(*, hidden: bool) -> None:
    """A judge that is killed cannot end its workers; the kernel does it then."""
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if hidden:
        # Where the user is not root, no other process of the same user can look into this one.
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
