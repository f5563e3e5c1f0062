"""Sees what a candidate put between a call of torch and its kernel: modes, kernels of its own, tracers.

Work that a call left undone could be caught up there when the judge copies what was returned.
So the worker looks before it copies, with functions bound before the candidate is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext

__all__ = ["modes", "registered", "tracers"]

# What an output goes through from its copy to the judge.
_OPERATORS = (
    "alias clone contiguous copy_ detach empty.memory_format empty_strided equal reshape _reshape_alias"
    " resolve_conj resolve_neg set_.source_Storage set_.source_Storage_storage_offset slice.Tensor _to_copy"
    " to.device to.dtype view view.dtype"
)
# Audit events; no other name of the function that raises one hides it.
_TRACERS = frozenset(("sys.monitoring.register_callback", "sys.setprofile", "sys.settrace"))


def modes() -> Callable[[], list[str]]:
    """What names the modes entered since now; that of ``torch.set_default_device`` is left out."""
    stacks: tuple[tuple[str, Callable[[], int], Callable[[int], Any]], ...] = (
        ("dispatch", torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_stack_at),
        ("function", torch._C._len_torch_function_stack, torch._C._get_function_stack_at),
    )
    kind, count, harmless = type, range, DeviceContext

    def entered() -> list[str]:
        return [
            f"torch's {name} calls (mode {kind(at(i)).__name__})"
            for name, length, at in stacks
            for i in count(length())
            if kind(at(i)) is not harmless and not any(at(i) is one for one in known)
        ]

    known: list[Any] = []
    known += [at(i) for _, length, at in stacks for i in range(length())]
    return entered


def registered() -> Callable[[], list[str]]:
    """What names the kernels registered since now for torch's own operators that copies go through."""
    # The text names each kernel with its dispatch key, and where it was registered, from Python or C++.
    dump, names = torch._C._dispatch_dump, _OPERATORS.split()
    before = [frozenset(dump(f"aten::{name}").splitlines()) for name in names]

    def added() -> list[str]:
        return [
            f"aten::{name} ({line.partition(' :: ')[0]})"
            for name, known in zip(names, before, strict=True)
            for line in dump(f"aten::{name}").splitlines()
            if line not in known
        ]

    return added


def tracers() -> Callable[[], list[str]]:
    """What names the ways in which a tracer was set since now, in any thread, even where it is gone again."""
    heard: list[str] = []
    watched = _TRACERS

    def hear(event: str, arguments: Any) -> None:
        if event in watched and event not in heard:
            heard.append(event)

    sys.addaudithook(hear)
    return lambda: [f"the interpreter's tracer ({event})" for event in heard]
