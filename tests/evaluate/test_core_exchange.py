"""Messages and values between judge and worker, from honest and from hostile writers."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from kernels.evaluate.outputs import identical
from kernels.evaluate.workers.calls import make_copier
from kernels.evaluate.workers.exchange import (
    Channel,
    ChannelClosed,
    ChannelTimeout,
    Malformed,
    describe,
    map_value,
    overlaps,
    pending,
    read_value,
    tensors_of,
    write_value,
)

MOST = 1 << 30


def both(value: Any, folder: Path, **words: Any) -> tuple[Any, Any]:
    """``value`` as a worker and as the judge read it."""
    written = json.loads(json.dumps(write_value(value, folder / "value", **words)))
    return map_value(folder, written)[0], read_value(folder, written, most_bytes=MOST)[0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -1.5,
        float("inf"),
        1 + 2j,
        "text",
        [1, (2.0, None), {"a": [3], 4: "x"}],
        torch.float16,
        torch.device("cpu"),
        [],
    ],
)
def test_values_without_tensors(value: Any, tmp_path: Path) -> None:
    for read in both(value, tmp_path):
        assert read == value
        assert type(read) is type(value)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "bool", "complex64"]
)
def test_tensors_of_every_kind(dtype: str, tmp_path: Path) -> None:
    tensor = torch.arange(-3, 9).reshape(3, 4).to(getattr(torch, dtype))
    for read in both([tensor, torch.empty(0, 3, dtype=tensor.dtype), tensor.sum()], tmp_path):
        assert torch.equal(read[0], tensor)
        assert read[1].shape == (0, 3)
        assert read[1].dtype == tensor.dtype
        assert read[2].shape == ()


def test_a_named_tuple_has_names_where_the_writer_is_trusted(tmp_path: Path) -> None:
    class Batch(NamedTuple):
        x: torch.Tensor
        count: int

    trusted, read = both({"batch": Batch(torch.ones(3), 2)}, tmp_path)
    assert trusted["batch"]._fields == ("x", "count") and trusted["batch"].count == 2
    assert type(read["batch"]) is tuple and read["batch"][1] == 2


def test_float8(tmp_path: Path) -> None:
    tensor = torch.tensor([1.0, -448.0, float("nan")]).to(torch.float8_e4m3fn)
    for read in both(tensor, tmp_path):
        assert torch.equal(read.view(torch.uint8), tensor.view(torch.uint8))


def test_layouts_arrive_as_they_are(tmp_path: Path) -> None:
    base = torch.full((40,), float("nan"))
    view = base[3:35].view(4, 8)[:, ::2].t()
    view.copy_(torch.arange(16.0).reshape(4, 4))
    expanded = torch.ones(1, 4).expand(3, 4)
    first, second = base[:5], base[5:10]
    reads = both([view, expanded, first, second], tmp_path)
    for read in reads:
        assert read[0].stride() == view.stride()
        assert torch.equal(read[0], view)
        assert read[1].stride() == (0, 1)
        assert read[2].untyped_storage().data_ptr() == read[3].untyped_storage().data_ptr()
    # The worker's has storages of its own, aligned and bounded as the original's.
    assert reads[0][0].storage_offset() == view.storage_offset()
    assert reads[0][0].untyped_storage().nbytes() == base.untyped_storage().nbytes()


def test_values_only_writes_what_is_seen(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()[1:]
    written = write_value(tensor, tmp_path / "value", values_only=True)
    assert written["bytes"] < 12 * 4 + 64
    assert torch.equal(read_value(tmp_path, written, most_bytes=MOST)[0], tensor)


def test_parameters_stay_parameters(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    for read in both([parameter], tmp_path):
        assert isinstance(read[0], torch.nn.Parameter)
        assert not read[0].requires_grad


@pytest.mark.parametrize("value", [object(), {1.5: 2}, torch.eye(3).to_sparse(), {"x": {1, 2}}])
def test_values_without_a_form(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"supported|keys"):
        write_value(value, tmp_path / "value")


def test_a_list_in_itself(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TypeError, match="nested"):
        write_value(value, tmp_path / "value")


def spoiled(folder: Path, **changes: Any) -> dict[str, Any]:
    written = write_value(torch.arange(8.0), folder / "value")
    return {**written, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../value"},
        {"file": "missing"},
        {"file": 3},
        {"bytes": 1 << 40},
        {"bytes": -1},
        {"bytes": "many"},
        {"bytes": 4096},
        {"places": [[0, 1 << 50]]},
        {"places": [[-8, 16]]},
        {"places": None},
        {"tree": None},
        {"tree": {"k": "unknown"}},
        {"tree": {"k": "tensor"}},
        {"tree": {"k": "float", "v": "zero"}},
        {"tree": {"k": "value", "v": [1]}},
        {"tree": {"k": "dtype", "v": "float3"}},
    ],
)
def test_lies_about_a_value(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Malformed):
        read_value(tmp_path, spoiled(tmp_path, **changes), most_bytes=1 << 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [9]},
        {"shape": [-1]},
        {"shape": [2.5]},
        {"shape": [True]},
        {"stride": [1 << 40]},
        {"offset": 7},
        {"dtype": "float64"},
        {"dtype": "object"},
        {"at": 1},
        {"at": -1},
    ],
)
def test_lies_about_a_tensor(changes: dict[str, Any], tmp_path: Path) -> None:
    written = spoiled(tmp_path)
    written["tree"].update(changes)
    with pytest.raises(Malformed):
        read_value(tmp_path, written, most_bytes=1 << 20)


def test_files_that_are_none(tmp_path: Path) -> None:
    written = spoiled(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "value")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "folder"):
        with pytest.raises(Malformed):
            read_value(tmp_path, {**written, "file": name}, most_bytes=1 << 20)


def test_a_tree_too_deep_to_read(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"k": "value", "v": 1}
    for _ in range(200):
        tree = {"k": "list", "v": [tree]}
    with pytest.raises(Malformed):
        read_value(tmp_path, {"file": "x", "bytes": 0, "places": [], "tree": tree}, most_bytes=9)


# -- messages --------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


def soon() -> float:
    return time.monotonic() + 5


def test_messages_go_both_ways(pair: tuple[Channel, socket.socket]) -> None:
    one, other = pair[0], Channel(pair[1])
    for message in ({"a": 1}, {"text": "x" * 100_000}):
        one.send(message, soon())
        assert other.receive(soon()) == message


def test_a_message_in_pieces(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    data = struct.pack(">I", 8) + b'{"a": 1}'
    for byte in data:
        theirs.send(bytes([byte]))
    assert channel.receive(soon()) == {"a": 1}


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 5) + b"hello",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 2) + b"\xff\xfe",
        struct.pack(">I", 200_000) + b"[" * 200_000,
        struct.pack(">I", 0),
    ],
)
def test_messages_that_are_none(data: bytes, pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.setblocking(False)
    while data:  # more than a socket holds
        try:
            data = data[theirs.send(data) :]
        except BlockingIOError:
            break
    with pytest.raises((Malformed, ChannelTimeout)):
        channel.receive(time.monotonic() + 0.5)


def test_a_message_cut_off_by_a_closed_end(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.send(struct.pack(">I", 100) + b"{")
    theirs.close()
    with pytest.raises(ChannelClosed):
        channel.receive(soon())


def test_silence_ends_at_the_deadline(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    waited: list[int] = []
    with pytest.raises(ChannelTimeout):
        channel.receive(time.monotonic() + 0.5, lambda: waited.append(1))
    assert waited


def test_a_reader_that_reads_nothing(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    with pytest.raises(ChannelTimeout):
        channel.send({"text": "x" * (8 << 20)}, time.monotonic() + 0.3)


def test_paths_and_words() -> None:
    value = [torch.ones(2, 3), {"x": (torch.ones(1), 3)}, None]
    assert [path for path, _ in tensors_of(value)] == ["[0]", "[1]['x'][0]"]
    assert describe([torch.ones(2, 3), 3, None, [torch.ones(1)]]) == (
        "float32[2, 3]",
        "int 3",
        "None",
        "[float32[1]]",
    )


X = torch.randn(6, 8)
Z = torch.randn(3, 3, dtype=torch.complex64)
RETURNED = {
    "contiguous": X,
    "transposed": X.t(),
    "a part": X[2:, 1:5],
    "with gaps": X[:, ::3],
    "expanded": X[:1].expand(4, 8),
    "a scalar": X[1, 1],
    "empty": X[:0],
    "bool": X[1:] > 0,
    "float8": X.to(torch.float8_e4m3fn),
    "a parameter": torch.nn.Parameter(X),
    "conjugation pending": Z.conj(),
    "negation pending": Z.conj().imag,
    "zeros that have no memory": torch._efficientzerotensor(3, 3),
}


@pytest.mark.parametrize("tensor", RETURNED.values(), ids=RETURNED)
def test_a_copy_on_the_cpu_has_the_same_bits_in_memory_of_its_own(tensor: torch.Tensor) -> None:
    copy = make_copier("cpu")(tensor)
    assert identical(copy, tensor)
    assert pending(copy) == pending(tensor)
    assert tensor._is_zerotensor() or not tensor.numel() or copy.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(
    ("tensor", "shared"),
    [
        (X, False),
        (X.t(), False),
        (X[:, ::3], False),
        (X[:, :1].expand(6, 8), True),
        (X[::3, :1].expand(2, 3), True),
        (X[:, :1].expand(6, 1), False),
        (X[:1, :1].expand(0, 8), False),
        (torch.zeros(()).expand(1, 1), False),
        (X.as_strided((4, 4), (1, 1)), True),
        (torch.empty(2, 0, 3), False),
    ],
)
def test_elements_that_share_memory(tensor: torch.Tensor, shared: bool) -> None:
    assert overlaps(tensor) is shared


def test_a_tensor_larger_than_its_storage_is_not_copied() -> None:
    tensor = torch.zeros(8)
    tensor.untyped_storage().resize_(16)
    with pytest.raises(ValueError, match="larger than its storage"):
        make_copier("cpu")(tensor)
