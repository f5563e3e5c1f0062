"""Sees whether a candidate replaced what its worker works with: clocks, copies, the worker's own functions.

A candidate runs in the worker's process and can assign to anything there. What the worker
needs it binds early; what it reaches through modules and classes is noted in a
:class:`Seal` before the candidate is loaded, and compared after every request. A candidate
written against this very file can undo it: what then remains is what the judge sees from
outside.
"""

from __future__ import annotations

import builtins
import json
import mmap
import os
import socket
import struct
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._device import DeviceContext

from kernels.evaluate.workers.hooks import modes, tracers

__all__ = ["seal"]

# Modules all of whose names count, and classes with the names that the worker goes through.
_WHOLE = (time, json, struct, mmap, socket)
_TENSOR = (
    "clone copy_ cpu contiguous data_ptr detach dtype device equal is_conj is_meta is_neg layout numel "
    "requires_grad reshape set_ shape storage_offset stride to untyped_storage view __getattribute__"
)
_PARTS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, _TENSOR),
    (DeviceContext, "__torch_function__"),
    (torch.UntypedStorage, "data_ptr nbytes"),
    (torch, "empty equal frombuffer no_grad"),
    (torch.cuda, "Event synchronize current_stream _sleep"),
    (torch.cuda.Event, "elapsed_time record synchronize"),
    (os, "open close write read ftruncate"),
    (builtins, "abs all any callable dict enumerate getattr id isinstance len list max min open range"),
    (builtins, "set sorted sum tuple type zip"),
)
_OWN = "kernels.evaluate"
_NOTHING = object()
_Noted = tuple[str, Any, str, Any]


def seal() -> Callable[[], list[str]]:
    """Note what is there now; the function returned names what was replaced, or put before it, since.

    At most ten of them.
    """
    noted, entered, traced = tuple(_noted()), modes(), tracers()
    look, order, nothing = getattr, sorted, _NOTHING

    def replaced() -> list[str]:
        labels = {label for label, holder, key, value in noted if look(holder, key, nothing) is not value}
        return [*entered(), *traced(), *order(labels)][:10]

    return replaced


def _noted() -> Iterator[_Noted]:
    for module in _WHOLE:
        for name, value in vars(module).items():
            if callable(value):
                yield f"{module.__name__}.{name}", module, name, value
    for holder, names in _PARTS:
        for name in names.split():
            yield f"{holder.__name__}.{name}", holder, name, getattr(holder, name)
    for module in [found for name, found in sys.modules.items() if name.startswith((_OWN, "__main__"))]:
        yield from _functions(module.__name__, module)


def _functions(label: str, holder: Any) -> Iterator[_Noted]:
    """The functions of a module or class with their code, defaults and closures; classes are followed."""
    for name, value in list(vars(holder).items()):
        where = f"{label}.{name}"
        if isinstance(value, types.FunctionType):
            yield where, holder, name, value
            for part in ("__code__", "__defaults__", "__kwdefaults__"):
                yield where, value, part, getattr(value, part)
        elif (
            isinstance(value, type)
            and value.__module__.startswith((_OWN, "__main__"))
            and holder is not value
        ):
            yield where, holder, name, value
            if isinstance(holder, types.ModuleType):
                yield from _functions(where, value)
        elif isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
            yield where, holder, name, value
