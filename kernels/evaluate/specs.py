"""What a subject is before anything is judged: inputs, parameters, operations, bytes, other shapes."""

from __future__ import annotations

import contextlib
from typing import Any

from kernels.evaluate.options import Options
from kernels.evaluate.outcome import reference_finding
from kernels.evaluate.subject import Target
from kernels.evaluate.workers.exchange import describe, read_value, tensors_of
from kernels.evaluate.workers.isolation import Limits, Worker, WorkerFailed, private_folder

__all__ = ["SpecsFailed", "specs"]

_MOST_BYTES = 64 << 30


class SpecsFailed(Exception):
    """The reference does not work here; ``status`` is the word for it."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def specs(target: Target, options: Options) -> dict[str, Any]:
    """What the reference says of itself, from a worker of its own. Raises :class:`SpecsFailed`."""
    limits = Limits.of_this_machine(options.time_limit)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(private_folder())
        worker = Worker("reference", folder, limits, options.device, options.threads)
        stack.callback(worker.close)
        try:
            worker.started()
            return _ask(worker, target, options)
        except WorkerFailed as failure:
            finding = reference_finding(failure, options.device)
            raise SpecsFailed(str(finding.evidence["status"]), finding.message) from failure


def _ask(worker: Worker, target: Target, options: Options) -> dict[str, Any]:
    opened = worker.request(
        "open", path=target.reference, package=target.package, draws=target.reference_draws
    )
    folder = str(worker.folder)

    def draw(kind: str, trial: int) -> dict[str, Any]:
        seeds = {"seed": options.seed + trial, "weights": options.seed, "call_seed": options.seed}
        return worker.request("draw", folder=folder, name=f"s{trial}", kind=kind, trial=trial, **seeds)

    found = draw("default", 0)
    init, _ = read_value(worker.folder, found["init"], most_bytes=_MOST_BYTES)
    state, _ = read_value(worker.folder, found["state"], most_bytes=_MOST_BYTES)
    parameters = [tensor for _, tensor in tensors_of(state)]
    counted = worker.request("count")
    jittered = [", ".join(draw("jitter", n)["words"]) for n in (1, 2, 3)] if opened["jitters"] else []
    return {
        "name": target.subject.name,
        "device": options.device,
        "inputs": list(found["words"]),
        "init": list(describe(init)),
        "parameters": sum(tensor.numel() for tensor in parameters),
        "parameter bytes": sum(tensor.numel() * tensor.element_size() for tensor in parameters),
        "operations": counted["flops"],
        "least bytes": counted["least_bytes"],
        "counted by": counted["by"],
        "tolerance": str(found["tolerance"] or "by dtype"),
        "draws random numbers": bool(found["random"]),
        "other shapes": [f"({words})" for words in jittered] or ["none: its shapes are fixed"],
        "sources": [f"{source.path} {source.sha256[:12]}" for source in target.subject.reference],
    }
