"""Direct calls: from Python to a binding, past torch's dispatcher (see ``kernels/bindings/direct.h``).

Torch does not promise what they rest on, so this module finds it out by experiment:
where a Python tensor keeps its C++ tensor, where that keeps its dispatch keys, and what
a thread's keys are while nothing unusual is on. Torch says elsewhere what each of them is; one
that is not found means no direct calls, and every call goes through the operator. So does it with
a torch that this was not tried with, and where ``KERNELS_DIRECT_CALLS=0`` asks for it.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["connect", "no_direct_call"]

_log = logging.getLogger(__name__)

# struct DirectFacts of kernels/bindings/direct.h: None, torch.Tensor, the three offsets, the thread's
# keys by default and in inference mode, a CPU tensor's by default and in inference mode.
_FACTS = struct.Struct("2P9Q")
_WORD = 8
# Of torch, oldest and newest: what they keep in memory was looked at.
_TRIED = (2, 11), (2, 14)
# No tensor is smaller: beyond this nothing is read.
_OBJECT_BYTES, _IMPL_BYTES = 40, 192


def no_direct_call(*arguments: Any) -> None:
    """What stands in for a direct call where there is none: it never serves."""


def connect(library: ctypes.CDLL, cuda_index: int | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The direct calls of a loaded binding, the accurate one and its fast twin.

    They take the operator's tensors, by position, and return None for any call that they do not
    serve: it has to be made through the operator, which also says what is wrong with it. Tensors
    on CUDA are served where ``cuda_index`` is a device in use: their keys can be seen there.
    """
    calls: list[Callable[..., Any]] = []
    if not _are_wanted():
        return no_direct_call, no_direct_call

    def experiment() -> None:
        possible = library.binding_direct_is_possible
        possible.restype = ctypes.c_bool
        if not possible():
            raise RuntimeError("torch has other functions")
        library.binding_set_direct_facts(_FACTS.pack(*_facts(library)))
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_bool)(("binding_direct_call", library))
        calls.extend((make(False), make(True)))

    def experiment_on_cuda() -> None:
        keys = [ctypes.c_uint64(_keys(tensor)) for tensor in _tensors(f"cuda:{cuda_index}")]
        library.binding_set_cuda_keys(cuda_index, *keys)

    _in_a_fresh_thread(experiment)
    if calls and cuda_index is not None:
        _in_a_fresh_thread(experiment_on_cuda)
    return (calls[0], calls[1]) if calls else (no_direct_call, no_direct_call)


def _are_wanted() -> bool:
    import torch

    from kernels.variables import value_of

    major, minor = torch.__version__.split(".")[:2]
    was_tried = _TRIED[0] <= (int(major), int(minor)) <= _TRIED[1]
    return was_tried and value_of("KERNELS_DIRECT_CALLS", "0", "1") != "0"


def _in_a_fresh_thread(experiment: Callable[[], None]) -> None:
    """Run ``experiment`` where no mode is on, whatever the caller is under; it may fail."""

    def run() -> None:
        try:
            experiment()
        except Exception:
            _log.debug("no direct calls with this torch", exc_info=True)

    thread = threading.Thread(target=run, name="direct calls")
    thread.start()
    thread.join()


def _facts(library: ctypes.CDLL) -> tuple[int, ...]:
    import torch

    plain, inference = _tensors("cpu")
    tensors = (plain, inference, plain._neg_view(), torch.empty(0, device="meta"))
    objects = [_words(id(tensor), _OBJECT_BYTES) for tensor in tensors]
    impls = [_words(tensor._cdata, _IMPL_BYTES) for tensor in tensors]
    return (
        id(None),
        id(torch.Tensor),
        _offset(objects, [id(torch.Tensor)] * len(tensors)),
        _offset(objects, [tensor._cdata for tensor in tensors]),
        _offset(impls, [_keys(tensor) for tensor in tensors]),
        *_thread_keys(library),
        _keys(plain),
        _keys(inference),
    )


def _tensors(device: str) -> tuple[Any, Any]:
    """An empty tensor as most are, and one made in inference mode."""
    import torch

    plain = torch.empty(0, device=device)
    with torch.inference_mode():
        return plain, torch.empty(0, device=device)


def _keys(tensor: Any) -> int:
    import torch

    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    return keys


def _words(address: int, size: int) -> tuple[int, ...]:
    return struct.unpack(f"{size // _WORD}Q", ctypes.string_at(address, size))


def _offset(memories: Sequence[Sequence[int]], values: Sequence[int]) -> int:
    """The one offset, in bytes, at which each of ``memories`` holds its value."""
    found = [
        index
        for index in range(len(memories[0]))
        if all(memory[index] == value for memory, value in zip(memories, values, strict=True))
    ]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} places hold what one should")
    return found[0] * _WORD


def _thread_keys(library: ctypes.CDLL) -> list[int]:
    """This thread's keys as its memory has them, by default and in inference mode.

    Memory has them as what differs from the default, which a thread starts with: zero.
    """
    import torch

    library.binding_thread_keys.restype = ctypes.c_void_p
    address = library.binding_thread_keys()
    memory: list[int] = []
    told: list[int] = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            memory += _words(address, 2 * _WORD)
            told += [
                torch._C._dispatch_tls_local_include_set().raw_repr(),
                torch._C._dispatch_tls_local_exclude_set().raw_repr(),
            ]
    changed = [told[0] ^ told[2], told[1] ^ told[3]]
    if memory[:2] != [0, 0] or memory[2:] != changed or 0 in changed:
        raise RuntimeError("a thread's dispatch keys are not where they should be")
    return memory
