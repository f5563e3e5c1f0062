"""What both kinds of worker do with callables: load inputs in place, call, time.

A *set* is one list of inputs. Loading new content into a set whose layout is unchanged
writes into the memory it has, past torch's version counters, as another framework
would: whoever remembers an input by its address or version is then wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernels.evaluate.workers.exchange import like, map_value, pending

__all__ = [
    "InputSets",
    "Staged",
    "load_file",
    "make_copier",
    "make_sampler",
    "mapped",
    "module_name",
    "place",
    "poisoned",
    "seed_all",
    "synchroniser",
]

_M_PERTURB = -6
# malloc fills new memory with the complement of this: 0x7f7f..., which is NaN in float16 and
# above 1e38 in float32 and bfloat16.
_FILL = 0x80
_POISON_BYTES = 256 << 20


# A tensor and what is copied into it.
Move = tuple[torch.Tensor, torch.Tensor]


class Staged(NamedTuple):
    """One value before it is in a set: what its layout is known by, the value, and the bytes under it."""

    layout: Any
    value: Any
    storages: list[torch.Tensor]


class InputSets:
    """Inputs by number, each with its storages on the device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._values: dict[int, Any] = {}
        self._storages: dict[int, list[torch.Tensor]] = {}
        self._layouts: dict[int, Any] = {}

    def load(self, number: int, folder: Path, written: Mapping[str, Any]) -> None:
        """Make set ``number`` hold what was written, in the memory it has if the layout is the same."""
        for ours, theirs in self.moves([self.stage(folder, written)], number):
            ours.copy_(theirs)

    def stage(self, folder: Path, written: Mapping[str, Any]) -> Staged:
        """What was written, in memory of its own until it is moved into a set."""
        return Staged((written["tree"], written["places"]), *map_value(folder, written))

    def moves(self, staged: Sequence[Staged], first: int = 0) -> list[Move]:
        """The copies after which the sets from ``first`` on hold what is staged; other layouts do at once."""
        found: list[Move] = []
        for number, one in enumerate(staged, first):
            if self._layouts.get(number) == one.layout:
                found += zip(self._storages[number], one.storages, strict=True)
                continue
            value, storages = place(one.value, one.storages, self._device)
            self._values[number], self._storages[number], self._layouts[number] = value, storages, one.layout
        return found

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def storages(self, number: int) -> list[torch.Tensor]:
        """The bytes of a loaded set, one tensor for each storage."""
        return self._storages[number]

    def drop(self, first: int) -> None:
        """Forget the sets from ``first`` on."""
        for table in (self._values, self._storages, self._layouts):
            for number in [key for key in table if key >= first]:
                del table[number]


def place(value: Any, storages: list[torch.Tensor], device: str) -> tuple[Any, list[torch.Tensor]]:
    """``value`` and the storages under it on ``device``: strides, offsets and sharing stay as they are.

    A scalar tensor that lives on the CPU by the problem's own choice is moved as well.
    """
    if device == "cpu":
        # The views above share these storages; a tensor of its own does not share their version.
        fresh = [torch.empty(0, dtype=torch.uint8) for _ in storages]
        raw = [
            f.set_(s.untyped_storage(), 0, s.shape, s.stride()) for f, s in zip(fresh, storages, strict=True)
        ]
        return value, raw
    moved = [storage.to(device) for storage in storages]
    by_pointer = {s.untyped_storage().data_ptr(): m for s, m in zip(storages, moved, strict=True)}

    def onto(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            target = by_pointer.get(item.untyped_storage().data_ptr())
            if target is None or item.numel() == 0:
                return item.to(device)
            new = torch.empty(0, dtype=item.dtype, device=device)
            new.set_(target.untyped_storage(), item.storage_offset(), item.shape, item.stride())
            if isinstance(item, torch.nn.Parameter):
                return torch.nn.Parameter(new, requires_grad=item.requires_grad)
            return new
        if isinstance(item, (list, tuple)):
            return like(item, [onto(each) for each in item])
        if isinstance(item, dict):
            return {key: onto(each) for key, each in item.items()}
        return item

    return onto(value), moved


def synchroniser(device: str) -> Callable[[], None]:
    """What waits for all streams of ``device``; bound now, so that nobody can replace it later."""
    if device != "cuda":
        return lambda: None
    from torch._C import _cuda_synchronize

    return _cuda_synchronize


def make_copier(device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """What copies one tensor that a call returned; what it needs is bound now.

    On the CPU the C library moves the bytes of a plain tensor, strides and gaps as they are: no kernel
    that is registered over torch's own gets to work before. Elsewhere it is ``torch.Tensor.clone``.
    """
    clone, new_storage, empty, move = torch.Tensor.clone, torch.UntypedStorage, torch.empty, ctypes.memmove
    exact, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    if device != "cpu":
        return clone

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        own = type(tensor) in exact and tensor.layout is strided and tensor.device.type == "cpu"
        if not own or tensor.is_quantized or tensor._is_zerotensor() or not tensor.numel():
            return clone(tensor)
        shape, strides, width = tensor.shape, tensor.stride(), tensor.element_size()
        size = width * (1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)))
        if tensor.storage_offset() * width + size > tensor.untyped_storage().nbytes():
            raise ValueError("an output is larger than its storage")
        copy = new_storage(size)
        move(copy.data_ptr(), tensor.data_ptr(), size)
        found = empty(0, dtype=tensor.dtype).set_(copy, 0, shape, strides)
        # As it was returned: what is still to be done to the elements is not done here.
        for what in pending(tensor):
            found = found.conj() if what == "conjugation" else torch._neg_view(found)
        return found

    return copied


def make_sampler(
    device: str,
) -> Callable[[Callable[..., Any], list[Any], int, int | None], tuple[int, list[Any]]]:
    """A function ``sample(call, sets, passes, seed) -> (nanoseconds, outputs)``; its clock is bound now.

    The outputs are those of the last pass, one for each set. With a ``seed`` the generators are
    seeded with ``seed``, ``seed + 1``, ... before the calls of a pass, which is part of the time.
    """
    clock, synchronise, count = time.perf_counter_ns, synchroniser(device), range
    # On the CPU the generator alone: looking for other devices takes longer than a small call.
    reseed = torch.manual_seed if device == "cuda" else torch.default_generator.manual_seed

    def sample(
        call: Callable[..., Any], sets: list[Any], passes: int, seed: int | None
    ) -> tuple[int, list[Any]]:
        outputs = [None] * len(sets)
        order = [*enumerate(sets)]
        synchronise()
        start = clock()
        for _ in count(passes):
            for i, inputs in order:
                if seed is not None:
                    reseed(seed + i)
                outputs[i] = call(*inputs)
        synchronise()
        return clock() - start, outputs

    return sample


def mapped(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """``value`` with ``function`` of each tensor in it, however deep in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [mapped(item, function) for item in value]
    if isinstance(value, Mapping):
        return {key: mapped(item, function) for key, item in value.items()}
    return value


@contextlib.contextmanager
def poisoned(device: str) -> Iterator[None]:
    """Memory that is allocated inside holds rubbish: NaN or as good as, never zeros or an old result."""
    if device == "cuda":
        _poison_cuda()
        yield
        return
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_M_PERTURB, _FILL)
    try:
        yield
    finally:
        mallopt(_M_PERTURB, 0)


def _poison_cuda() -> None:
    """Fills torch's cached blocks of every usual size with NaN, and gives them back to the cache."""
    free, _ = torch.cuda.mem_get_info()
    held = []
    for size in (1 << 9, 1 << 12, 1 << 16, 1 << 20, 20 << 20, 64 << 20, _POISON_BYTES):
        if size * 4 < free:
            held += [torch.full((size // 4,), float("nan"), device="cuda") for _ in range(3)]
    torch.cuda.synchronize()
    del held


def seed_all(seed: int, *, manual_seed: Callable[[int], Any] = torch.manual_seed) -> None:
    """Seed every generator that a model may draw from; torch's is the one of when this was imported."""
    random.seed(seed)
    manual_seed(seed)
    # Only where it is used: it is no dependency here.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def module_name(role: str, number: int) -> str:
    """A module name that no installed package has."""
    return f"_{role}_{number}"


def load_file(path: str, name: str, extra: Mapping[str, Any]) -> Any:
    """Run the file as a module called ``name`` with ``extra`` among its globals, and return the module.

    Its folder is searched for what it imports, as if it were run by itself.
    """
    import importlib.util

    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    vars(module).update(extra)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
