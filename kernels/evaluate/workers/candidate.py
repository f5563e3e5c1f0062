"""The candidate's worker: loads the candidate, calls it, hands back outputs and facts about them.

It is given a file, the arguments of ``ModelNew`` and inputs; no reference, no expected
output, no tolerance and no seed of an input. What it needs of torch and of the clock
is bound before the candidate's first line runs; the judge checks its times from outside.
"""

from __future__ import annotations

import importlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernels.evaluate.outputs import identical
from kernels.evaluate.status import Status
from kernels.evaluate.timing.host import no_collector
from kernels.evaluate.workers.calls import (
    InputSets,
    load_file,
    make_copier,
    make_sampler,
    mapped,
    module_name,
    place,
    poisoned,
    seed_all,
    synchroniser,
)
from kernels.evaluate.workers.exchange import map_value, overlaps, pending, tensors_of, write_value
from kernels.evaluate.workers.hooks import modes, registered
from kernels.evaluate.workers.popcorn import NAME as POPCORN
from kernels.evaluate.workers.popcorn import PopcornPri

__all__ = ["Candidate", "handlers"]

# How long a result may still change after its call returned, for the judge to notice.
_SETTLE_SECONDS = 0.02
# Outputs that are held at once, to see whether a later call writes into one of them.
_HELD_BYTES = 64 << 20
_HELD_CALLS = 1024
_HELD_SECONDS = 0.25
# Holds the stream back for some ten milliseconds on any GPU that is supported.
_DELAY_CYCLES = 30_000_000


class _Unusable(Exception):
    """The candidate's file is not what it should be."""

    judge_status = Status.INVALID_CANDIDATE.value


def handlers(device: str) -> dict[str, Callable[..., dict[str, Any]]]:
    """What a candidate's worker answers to."""
    candidate = Candidate(device)
    return {
        "ping": dict,
        "open": candidate.open,
        "construct": candidate.construct,
        "load": candidate.load,
        "call": candidate.call,
        "time": candidate.time,
        "hold": candidate.hold,
        "collect": candidate.collect,
        "gradients": candidate.gradients,
        "memory": candidate.memory,
        "launches": candidate.launches,
        "cuda_time": candidate.cuda_time,
        "move": candidate.move,
        "kernels_seen": candidate.kernels_seen,
        "save": candidate.save,
        "libraries": candidate.libraries,
    }


class _BadOutput(Exception):
    """The candidate returned something that is no output of any model."""

    judge_status = Status.WRONG_OUTPUT.value


class Candidate:
    """The state of the worker: the class, one instance, its inputs and last outputs.

    Where nothing is ``timed`` (under a profiler) the CUDA clock and its L2 flush are not made.
    """

    def __init__(self, device: str, *, timed: bool = True) -> None:
        self._device = device
        self._type: Any = None
        self._model: Any = None
        self._sets = InputSets(device)
        self._sample = make_sampler(device)
        self._synchronise = synchroniser(device)
        self._sleep = time.sleep
        self._clock = time.monotonic
        self._seed = torch.manual_seed
        self._copy = make_copier(device)
        self._modes, self._registered = modes(), registered()
        self._opened = 0
        self._earlier: list[torch.Tensor] = []
        self._outputs: list[Any] = []
        self._returned: list[Any] = []
        self._timed: list[int] = []
        self._timers: Any = None
        self._tools: Any = None
        if device == "cuda" and timed:
            from kernels.evaluate.timing.cuda_tools import CudaTools

            # Made before the candidate's first line: its clock, events and flush are then out of reach.
            self._tools = CudaTools(torch.cuda.current_device())

    def open(self, path: str, package: str, popcorn: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Import the candidate: ``package``'s ``ModelNew`` or that of the file."""
        self._opened += 1
        if path:
            draws = {POPCORN: PopcornPri(**popcorn)} if popcorn else {}
            module = load_file(path, module_name("candidate", self._opened), draws)
        else:
            module = importlib.import_module(package)
        self._type = getattr(module, "ModelNew", None)
        if not callable(self._type):
            raise _Unusable(f"ModelNew is {type(self._type).__name__} and not a class")
        return {}

    def construct(
        self, folder: str, init: Mapping[str, Any], state: Mapping[str, Any], seed: int, cast: str = ""
    ) -> dict[str, Any]:
        """Make ``ModelNew(*init)`` on the device, with the reference's parameters where they fit."""
        arguments, _ = map_value(Path(folder), init)
        values, _ = map_value(Path(folder), state)
        self._model, self._outputs, self._earlier, self._timers = None, [], [], None
        self._sets.drop(0)
        # As where the reference is made. Calls have torch's alone: one that draws from another is random.
        seed_all(seed)
        model = self._type(*arguments)
        if not callable(model):
            raise _Unusable("an instance of ModelNew cannot be called")
        weights = "ModelNew has no parameters"
        if isinstance(model, torch.nn.Module):
            weights = _take_over(model, values)
            model = model.to(self._device)
            if cast:
                model = model.to(getattr(torch, cast))
        self._model = model
        return {"weights": weights}

    @property
    def model(self) -> Any:
        """The instance that is being judged."""
        return self._model

    def load(self, folder: str, first: int, values: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Load inputs into the sets from ``first`` on."""
        for number, written in enumerate(values, first):
            self._sets.load(number, Path(folder), written)
        self._synchronise()
        return {}

    def call(
        self, folder: str, name: str, set: int, seed: int, late_inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """One call on fresh memory; its outputs as they were the moment it returned.

        With ``late_inputs`` (CUDA) the inputs arrive on the current stream behind a delay, so that
        work on another stream that waits for nothing reads what was there before.
        """
        inputs = self._sets[set]
        staged = None if late_inputs is None else self._stage(set, Path(folder), late_inputs)
        self._seed(seed)
        with torch.no_grad(), poisoned(self._device):
            if staged is not None:
                torch.cuda._sleep(_DELAY_CYCLES)
                for ours, theirs in zip(self._sets.storages(set), staged, strict=True):
                    ours.copy_(theirs, non_blocking=True)
            output = self._model(*inputs)
            # Before anything touches the output. The longer look comes when there is a copy of it.
            replaced = self._modes()
            facts = self._facts(output, inputs)
            plain = _plain(facts)
            snapshot = self._copied(output) if plain else None
        reply: dict[str, Any] = {"facts": facts, "replaced": replaced + self._registered()}
        # Keeps them alive: an address that is free again would look like sharing.
        self._earlier = [tensor for _, tensor in tensors_of(output) if type(tensor) is torch.Tensor]
        if not plain:
            return reply
        self._sleep(_SETTLE_SECONDS)
        self._synchronise()
        try:
            reply["outputs"] = write_value(snapshot, Path(folder) / f"{name}.out", values_only=True)
        except TypeError as error:
            raise _BadOutput(f"the output contains {error}") from error
        if not identical(snapshot, output):
            reply["settled"] = write_value(output, Path(folder) / f"{name}.settled", values_only=True)
        reply["inputs"] = write_value(self._sets.storages(set), Path(folder) / f"{name}.in", values_only=True)
        return reply

    def time(
        self,
        sets: int,
        passes: int,
        seed: int | None = None,
        folder: str = "",
        contents: list[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Nanoseconds of ``passes`` over the first ``sets`` sets; the outputs of the last pass are kept.

        With a ``seed`` the generators are seeded before each call, as in a trial. ``contents`` are read,
        then one call is made on the old content of set 0, and they go into the sets just before the clock
        starts: who watches their memory has no time to work.
        """
        self._outputs = []
        staged = [self._sets.stage(Path(folder), written) for written in contents or ()]
        moves = self._sets.moves(staged)
        values = [self._sets[number] for number in range(sets)]
        with torch.no_grad(), no_collector(collect=False):
            if moves:
                # What staging left in the caches would be in the first call's time.
                self._model(*values[0])
            for ours, theirs in moves:
                ours.copy_(theirs)
            nanoseconds, outputs = self._sample(self._model, values, passes, seed)
            replaced = self._modes()
            # Results are taken at once, the latest first: what is still being written is missing in them.
            taken = [self._copied(output) for output in reversed(outputs)]
        self._outputs, self._timed = taken[::-1], list(range(sets))
        self._returned = outputs
        return {"ns": nanoseconds, "replaced": replaced}

    def hold(self, excused: Sequence[str] = ()) -> dict[str, Any]:
        """Call in a row and keep the outputs; ``shared`` is the first call that returned memory of one.

        Outputs whose paths are ``excused`` may be the same memory in every call.
        """
        held: list[Any] = []
        known: set[int] = set()
        size, start = 0, self._clock()
        while size < _HELD_BYTES and len(held) < _HELD_CALLS and self._clock() - start < _HELD_SECONDS:
            with torch.no_grad():
                held.append(self._model(*self._sets[0]))
            found = [(path, t) for path, t in tensors_of(held[-1]) if type(t) is torch.Tensor]
            tensors = [t for _, t in found]
            if _addresses(t for path, t in found if path not in excused) & known:
                return {"shared": len(held)}
            known |= _addresses(tensors)
            size += sum(t.untyped_storage().nbytes() for t in tensors if t.layout is torch.strided)
        # What is still under way must not be in the next request's time.
        self._synchronise()
        return {}

    def collect(self, folder: str, name: str) -> dict[str, Any]:
        """The outputs of the last timed calls, and the bytes of their inputs now."""
        self._synchronise()
        replaced = self._modes() + self._registered()
        self._earlier, facts = [], []
        for number, output in zip(self._timed, self._returned, strict=True):
            facts.append(self._facts(output, self._sets[number]))
            self._earlier += [tensor for _, tensor in tensors_of(output)]
        if not all(_plain(each) for each in facts):
            return {"facts": facts, "replaced": replaced}
        inputs = [self._sets.storages(number) for number in self._timed]
        written: dict[str, Any] = {
            "facts": facts,
            "replaced": replaced,
            "outputs": write_value(self._outputs, Path(folder) / f"{name}.out", values_only=True),
            "inputs": write_value(inputs, Path(folder) / f"{name}.in", values_only=True),
        }
        self._outputs, self._returned = [], []
        return written

    def save(self, folder: str, set: int) -> dict[str, Any]:
        """Write what ``--replay`` needs beside the candidate itself: the inputs of one set."""
        from kernels.evaluate.workers.replay import save

        return save(Path(folder), self._sets[set])

    def libraries(self) -> dict[str, Any]:
        """Shared libraries this process has mapped that were built outside torch and the system."""
        from kernels.evaluate.workers.replay import built_libraries

        return {"libraries": built_libraries()}

    def gradients(self, folder: str, name: str, set: int, seed: int) -> dict[str, Any]:
        """Gradients for the inputs and parameters, by name; empty where no output asks for any."""
        from kernels.evaluate.workers.gradients import gradients

        found = gradients(self._model, self._sets[set], seed)
        return {"gradients": write_value(found, Path(folder) / f"{name}.grad", values_only=True)}

    def memory(self, set: int) -> dict[str, Any]:
        """Bytes that one call needs beyond its inputs and outputs."""
        from kernels.evaluate.measures.memory import extra_bytes
        from kernels.evaluate.result import as_json

        inputs = self._sets[set]
        with torch.no_grad():
            reads = [inputs, self._model]
            return {"memory": as_json(extra_bytes(lambda: self._model(*inputs), self._device, reads))}

    def launches(self, set: int) -> dict[str, Any]:
        """The kernels of one call, from the GPU's own records."""
        from kernels.evaluate.measures.launches import record
        from kernels.evaluate.result import as_json

        inputs = self._sets[set]
        with torch.no_grad():
            return {"launches": as_json(record(lambda: self._model(*inputs)))}

    def cuda_time(self, mode: str, cache: str, sets: int, samples: int, budget: float) -> dict[str, Any]:
        """Samples of the CUDA timer over the first ``sets`` sets; the outputs are kept for ``collect``."""
        from kernels.evaluate.workers.cuda import timed

        values = [self._sets[number] for number in range(sets)]
        timer = self._timer(values)
        reply, outputs = timed(timer, mode, cache, samples, budget)
        reply["replaced"] = self._modes()
        # What a graph returned lies where its next replay writes: only copies can be compared.
        self._outputs = self._returned = [self._copied(output) for output in outputs]
        self._timed = list(range(sets))
        return reply

    def kernels_seen(self, sets: int) -> dict[str, Any]:
        """How many kernels, copies and fills one call puts on the GPU."""
        values = [self._sets[number] for number in range(sets)]
        from kernels.evaluate.unavailable import Unavailable

        try:
            with torch.no_grad():
                return {"kernels_seen": int(self._timer(values).kernels_seen())}
        except Unavailable as error:  # no fault of the candidate
            return {"kernels_seen": None, "unavailable": str(error)}

    def move(self, place: int) -> dict[str, Any]:
        """Have the sets that are loaded next, and what is made of them, lie in other memory."""
        self._sets.drop(0)
        self._outputs, self._returned, self._earlier, self._timed = [], [], [], []
        if self._timers is not None:
            self._timers.move(place)
        return {}

    def _timer(self, values: list[Any]) -> Any:
        if self._timers is None:
            from kernels.evaluate.workers.cuda import Timers

            self._timers = Timers(self._tools, self._copied)
        return self._timers.of(len(values), self._model, values)

    def _copied(self, output: Any) -> Any:
        return mapped(output, self._copy)

    def _stage(self, set: int, folder: Path, written: Mapping[str, Any]) -> list[torch.Tensor]:
        _, storages = place(*map_value(folder, written), self._device)
        self._synchronise()
        return storages

    def _facts(self, output: Any, inputs: Any) -> list[dict[str, Any]]:
        """What each returned tensor is, and whose memory it is in; or which container is no plain one."""
        odd = _odd_containers(output)
        if odd:
            return odd
        theirs = _addresses(tensor for _, tensor in tensors_of(inputs))
        before = _addresses(tensor for tensor in self._earlier if type(tensor) is torch.Tensor)
        found = []
        for path, tensor in tensors_of(output):
            exact = type(tensor) in (torch.Tensor, torch.nn.Parameter)
            plain = exact and tensor.layout is torch.strided and not tensor.is_meta
            unmade = _unmade(tensor) if plain else ""
            plain = plain and not unmade
            address = _addresses([tensor]) if plain else set()
            found.append(
                {
                    "path": path,
                    "type": type(tensor).__name__,
                    "plain": plain,
                    "layout": unmade or str(tensor.layout),
                    "device": tensor.device.type if exact else "",
                    "pending": pending(tensor) if plain else [],
                    "overlaps": plain and overlaps(tensor),
                    "aliases_input": bool(address & theirs),
                    "aliases_earlier": bool(address & before),
                }
            )
        return found


def _take_over(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> str:
    """Gives ``model`` the reference's parameters where names and shapes agree, and says what was done."""
    own = model.state_dict()
    if not state and not own:
        return "the reference has no parameters"
    if {name: tuple(value.shape) for name, value in own.items()} != {
        name: tuple(value.shape) for name, value in state.items()
    }:
        return "seeded as the reference's; names or shapes differ, so none were copied"
    # An instance that prepared something from equal parameters must not find them replaced.
    if all(torch.equal(own[name].cpu(), value) for name, value in state.items()):
        return "seeded as the reference's, and equal to them"
    model.load_state_dict(state)
    return "copied from the reference"


def _odd_containers(value: Any, path: str = "") -> list[dict[str, Any]]:
    """Lists, tuples and dicts whose type answers for its items itself, and so may make them when asked."""
    if not isinstance(value, (list, tuple, Mapping)):
        return []
    base = next((kind for kind in (list, tuple, dict) if isinstance(value, kind)), None)
    own = ("__iter__", "__getitem__", "__len__", *(("items", "keys", "values") if base is dict else ()))
    usual = base if type(value) is not OrderedDict else OrderedDict
    if base is None or any(getattr(type(value), name) is not getattr(usual, name) for name in own):
        fact = {"path": path, "type": type(value).__name__, "plain": False, "layout": "no plain container"}
        return [{**fact, "device": ""}]
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [odd for key, item in items for odd in _odd_containers(item, f"{path}[{key!r}]")]


def _unmade(tensor: torch.Tensor) -> str:
    """Why the elements of a tensor with a storage are not in it yet; empty where they are."""
    if tensor._is_zerotensor():
        return "zeros that were never written"
    # Asking for the address would make the copy.
    return "not copied yet" if torch._C._is_cow_tensor(tensor) else ""  # type: ignore[attr-defined]


def _plain(facts: list[dict[str, Any]]) -> bool:
    return all(fact["plain"] for fact in facts)


def _addresses(tensors: Any) -> set[int]:
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]
    return {storage.data_ptr() for storage in storages if storage.nbytes()}
