"""What goes between the judge and its workers: framed JSON messages, and tensors in files.

A message is four bytes of length and that much JSON. It is never pickled: the judge must
not run what a candidate wrote. A value with tensors in it (inputs, outputs, a state dict)
is JSON of its structure, and one file with the bytes of all its storages behind each other.

The judge reads with :func:`read_value`, which believes nothing: a file that is a pipe, a
link or too short, a dtype that does not exist and a view outside its storage all raise
:class:`Malformed`. It reads and never maps: a mapped file that its writer cuts short ends
the reader's process.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import select
import socket
import stat
import struct
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "DTYPES",
    "Channel",
    "ChannelClosed",
    "ChannelTimeout",
    "Malformed",
    "by_key",
    "describe",
    "like",
    "map_value",
    "overlaps",
    "pending",
    "read_value",
    "rebuilt",
    "sent",
    "tensors_of",
    "write_value",
]

_LENGTH = struct.Struct(">I")
_MOST_BYTES = 16 << 20
_MOST_NODES = 20_000
_DEEPEST = 40
_ALIGN = 64

DTYPES: dict[str, torch.dtype] = {
    name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}
_NAMES = {value: str(value).removeprefix("torch.") for value in DTYPES.values()}


class Malformed(Exception):
    """The other side sent something that is no message, or no value."""


class ChannelClosed(Exception):
    """The other side is gone."""


class ChannelTimeout(Exception):
    """The other side said nothing in time."""


class Channel:
    """One end of a socket pair. A message is a JSON object."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._got = bytearray()

    def fileno(self) -> int:
        """The descriptor, for ``select``."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def send(self, message: Mapping[str, Any], deadline: float | None = None) -> None:
        """Send ``message``; ``deadline`` is of ``time.monotonic``. Raises the Channel errors."""
        text = json.dumps(message, separators=(",", ":")).encode()
        if len(text) > _MOST_BYTES:
            raise Malformed(f"a message of {len(text)} bytes; supported: up to {_MOST_BYTES}")
        left = memoryview(_LENGTH.pack(len(text)) + text)
        while left:
            try:
                left = left[self._end.send(left) :]
            except (BlockingIOError, InterruptedError):
                self._wait(deadline, writing=True)
            except OSError as error:
                raise ChannelClosed(str(error)) from error

    def receive(
        self, deadline: float | None = None, idle: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """The next message. ``idle`` is called about five times a second while there is none."""
        size = _LENGTH.unpack(self._take(_LENGTH.size, deadline, idle))[0]
        if size > _MOST_BYTES:
            raise Malformed(f"a message that says it has {size} bytes; supported: up to {_MOST_BYTES}")
        text = self._take(size, deadline, idle)
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"a message that is no JSON: {type(error).__name__}") from error
        if not isinstance(message, dict):
            raise Malformed("a message that is no JSON object")
        return message

    def _take(self, count: int, deadline: float | None, idle: Callable[[], None] | None) -> bytes:
        while len(self._got) < count:
            try:
                part = self._end.recv(1 << 16)
            except (BlockingIOError, InterruptedError):
                self._wait(deadline, writing=False, idle=idle)
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not part:
                raise ChannelClosed("the other end is closed")
            self._got += part
        taken = bytes(self._got[:count])
        del self._got[:count]
        return taken

    def _wait(self, deadline: float | None, *, writing: bool, idle: Callable[[], None] | None = None) -> None:
        left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
        if left <= 0:
            raise ChannelTimeout
        ends = [self._end.fileno()]
        ready = select.select([] if writing else ends, ends if writing else [], [], left)
        if idle is not None and not any(ready):
            idle()


# -- values ----------------------------------------------------------------------------------


def write_value(value: Any, path: Path, *, values_only: bool = False) -> dict[str, Any]:
    """Write the tensors of ``value`` into ``path`` and return what the other side reads it by.

    Whole storages are written, so that strides, offsets and shared memory arrive as they
    are; ``values_only`` writes each tensor's elements in row-major order instead. Tensors on
    CUDA are copied to the CPU. Raises ``TypeError`` for what has no form here.
    """
    writer = _Writer(values_only)
    tree = writer.node(value, 0)
    size = writer.size
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        if size:
            os.ftruncate(file, size)
            whole = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
            for (start, count), part in zip(writer.places, writer.parts, strict=True):
                if count:
                    whole[start : start + count].copy_(part)
    finally:
        os.close(file)
    return {"file": path.name, "bytes": size, "places": writer.places, "tree": tree}


class _Writer:
    def __init__(self, values_only: bool) -> None:
        self.values_only = values_only
        self.places: list[tuple[int, int]] = []
        self.parts: list[torch.Tensor] = []
        self.size = 0
        self._known: dict[Any, int] = {}
        self._nodes = 0

    def node(self, value: Any, depth: int) -> dict[str, Any]:
        self._nodes += 1
        if depth > _DEEPEST or self._nodes > _MOST_NODES:
            raise TypeError(f"a value nested deeper than {_DEEPEST} or with more than {_MOST_NODES} parts")
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if value is None or isinstance(value, (bool, int, str)):
            return {"k": "value", "v": value}
        if isinstance(value, float):
            return {"k": "float", "v": value.hex()}
        if isinstance(value, complex):
            return {"k": "complex", "v": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            node = {"k": kind, "v": [self.node(item, depth + 1) for item in value]}
            fields = _fields_of(value)
            return {**node, "type": type(value).__name__, "fields": fields} if fields else node
        if isinstance(value, Mapping):
            if not all(isinstance(key, (str, int)) for key in value):
                raise TypeError("a dict with keys that are neither text nor whole numbers")
            return {"k": "dict", "v": [[key, self.node(item, depth + 1)] for key, item in value.items()]}
        if isinstance(value, torch.dtype):
            return {"k": "dtype", "v": _NAMES[value]}
        if isinstance(value, torch.device):
            return {"k": "device", "v": str(value)}
        supported = "tensors, numbers, text, None, dtypes, and lists, tuples and dicts of them"
        raise TypeError(f"a value of type {type(value).__name__}; supported: {supported}")

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError(f"a {tensor.layout} tensor; supported: plain strided tensors")
        node: dict[str, Any] = {"k": "tensor", "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}
        node["parameter"] = isinstance(tensor, torch.nn.Parameter)
        node["grad"] = bool(tensor.requires_grad)
        plain = tensor.detach()
        if self.values_only or plain.is_conj() or plain.is_neg():
            plain = plain.cpu().resolve_conj().resolve_neg().contiguous()
            place = self._add(_bytes_of(plain.reshape(-1)))
            return {**node, "at": place, "offset": 0, "stride": None}
        storage = plain.untyped_storage()
        key = (str(plain.device), storage.data_ptr(), storage.nbytes())
        if key not in self._known or storage.nbytes() == 0:
            raw = torch.empty(0, dtype=torch.uint8, device=plain.device)
            self._known[key] = self._add(raw.set_(storage, 0, (storage.nbytes(),), (1,)).cpu())
        stride, offset = list(plain.stride()), plain.storage_offset()
        return {**node, "at": self._known[key], "offset": offset, "stride": stride}

    def _add(self, part: torch.Tensor) -> int:
        self.places.append((self.size, part.numel()))
        self.parts.append(part)
        self.size += -(-part.numel() // _ALIGN) * _ALIGN
        return len(self.places) - 1


def _bytes_of(flat: torch.Tensor) -> torch.Tensor:
    if flat.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    return flat.view(torch.uint8) if flat.dtype is not torch.bool else flat.to(torch.uint8)


def map_value(folder: Path, written: Mapping[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """The value in memory of its own, for a worker; beside it one byte tensor for each storage.

    The worker trusts the judge, so the file is mapped and copied once.
    """
    size = written["bytes"]
    whole = torch.empty(0, dtype=torch.uint8)
    if size:
        file = os.open(folder / written["file"], os.O_RDONLY)
        try:
            whole = torch.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        finally:
            os.close(file)
    storages = [whole[start : start + count].clone() for start, count in written["places"]]
    return _build(written["tree"], storages, named=True), storages


def rebuilt(written: Mapping[str, Any], storages: list[torch.Tensor]) -> Any:
    """The value that ``written`` describes, over other bytes. Raises :class:`Malformed`."""
    return _build(written["tree"], storages)


def read_value(folder: Path, written: Any, *, most_bytes: int) -> tuple[Any, list[torch.Tensor]]:
    """As :func:`map_value`, from a worker that may lie. Raises :class:`Malformed`."""
    try:
        name, size, places, tree = (written[key] for key in ("file", "bytes", "places", "tree"))
        fits = isinstance(size, int) and 0 <= size <= most_bytes
        if not isinstance(name, str) or "/" in name or name in (".", "..") or not fits:
            raise Malformed(f"a value of {size!r} bytes in {name!r}; supported: up to {most_bytes}")
        whole = _read_file(folder / name, size)
        storages = []
        for start, count in places:
            if not (
                isinstance(start, int) and isinstance(count, int) and 0 <= start <= start + count <= size
            ):
                raise Malformed("a storage outside its file")
            storages.append(whole[start : start + count])
        return _build(tree, storages), storages
    except Malformed:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        RuntimeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise Malformed(f"a value that cannot be read: {type(error).__name__}: {error}") from error


def _read_file(path: Path, size: int) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Malformed(f"a value without its file: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Malformed("a value in something that is no plain file")
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = os.readv(file, [view[got:]])
            if count == 0:
                raise Malformed(f"a file of {got} bytes that should have {size}")
            got += count
    finally:
        os.close(file)
    return torch.frombuffer(data, dtype=torch.uint8)


def _build(node: Any, storages: list[torch.Tensor], depth: int = 0, *, named: bool = False) -> Any:
    """The value of ``node``; only where ``named`` says so a NamedTuple has the names of its fields."""
    if depth > _DEEPEST:
        raise Malformed("a value nested too deeply")
    kind, value = node["k"], node.get("v")
    if kind == "tensor":
        return _view(node, storages)
    if kind == "value" and (value is None or isinstance(value, (bool, int, str))):
        return value
    if kind == "float":
        return float.fromhex(value)
    if kind == "complex":
        return complex(float.fromhex(value[0]), float.fromhex(value[1]))
    if kind in ("list", "tuple"):
        items = [_build(item, storages, depth + 1, named=named) for item in value]
        if named and node.get("fields"):
            return _named_tuple(node["type"], tuple(node["fields"]))(*items)
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: _build(item, storages, depth + 1, named=named) for key, item in value}
    if kind == "dtype":
        return DTYPES[value]
    if kind == "device":
        return torch.device(value)
    raise Malformed(f"a value of unknown kind {kind!r}")


def _view(node: Any, storages: list[torch.Tensor]) -> torch.Tensor:
    dtype, shape = DTYPES[node["dtype"]], [_whole(size) for size in node["shape"]]
    storage = storages[_whole(node["at"])]
    stride = node["stride"]
    if stride is None:
        stride, reach = [], 1
        for size in reversed(shape):
            stride.insert(0, reach)
            reach *= max(size, 1)
    stride, offset = [_whole(step) for step in stride], _whole(node["offset"])
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if math.prod(shape) and (last + 1) * dtype.itemsize > storage.numel():
        raise Malformed("a tensor outside its storage")
    # A storage of its own start: set_ counts from the beginning of the whole file otherwise.
    base = storage.untyped_storage()
    first = storage.storage_offset()
    tensor = torch.empty(0, dtype=dtype)
    if first % dtype.itemsize:
        base, first = storage.clone().untyped_storage(), 0
    tensor.set_(base, first // dtype.itemsize + offset, shape, stride)
    if node.get("parameter"):
        return torch.nn.Parameter(tensor, requires_grad=bool(node.get("grad")))
    return tensor


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Malformed(f"{value!r} where a size should be")
    return value


def like(value: Any, items: Sequence[Any]) -> Any:
    """A list or tuple of the type of ``value`` that holds ``items``."""
    return type(value)(*items) if _fields_of(value) else type(value)(items)


def _fields_of(value: Any) -> list[str]:
    """The names of a NamedTuple's items; empty for all else."""
    return list(getattr(value, "_fields", ())) if isinstance(value, tuple) else []


@lru_cache(maxsize=64)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """One type for one name and its fields, as a file would have it."""
    return namedtuple(name, fields)


def tensors_of(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    """Every tensor in ``value`` and where: ``""`` for the value itself, ``"[1]"``, ``"['x']"``."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, (list, tuple)):
        return [found for i, item in enumerate(value) for found in tensors_of(item, f"{path}[{i}]")]
    if isinstance(value, Mapping):
        return [found for key, item in by_key(value) for found in tensors_of(item, f"{path}[{key!r}]")]
    return []


def by_key(value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """The items of a dict in the order of its keys' texts: in which order it was made says nothing."""
    return sorted(value.items(), key=lambda item: repr(item[0]))


def pending(tensor: torch.Tensor) -> list[str]:
    """What torch has only noted on ``tensor`` and leaves to whoever reads the elements."""
    return ["conjugation"] * tensor.is_conj() + ["negation"] * tensor.is_neg()


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements surely lie in one place: a stride of 0, or fewer places than elements."""
    if not tensor.numel():
        return False
    pairs = [*zip(tensor.shape, tensor.stride(), strict=True)]
    places = 1 + sum((size - 1) * step for size, step in pairs)
    return places < tensor.numel() or any(size > 1 and step == 0 for size, step in pairs)


def sent(written: dict[str, Any]) -> dict[str, Any]:
    """As another worker gets it: so it is known that the layout is the same."""
    received: dict[str, Any] = json.loads(json.dumps(written))
    return received


def describe(value: Any) -> tuple[str, ...]:
    """One word for each item of a list of inputs: ``"float32[2, 80]"``, ``"int 3"``."""
    return tuple(_word(item) for item in (value if isinstance(value, (list, tuple)) else [value]))


def _word(item: Any) -> str:
    if isinstance(item, torch.Tensor):
        return f"{_NAMES[item.dtype]}{list(item.shape)}"
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(_word(each) for each in item)}]"
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{key}: {_word(each)}" for key, each in item.items()) + "}"
    return "None" if item is None else f"{type(item).__name__} {item}"
