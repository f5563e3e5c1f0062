"""What is timed beside a candidate: the reference, a package's peers, the reference compiled.

Their times are taken in the same way as a candidate's (:mod:`kernels.evaluate.workers.candidate`),
so that what that way costs is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.evaluate.precision import Settings, apart, kept, now
from kernels.evaluate.timing.host import no_collector
from kernels.evaluate.workers.calls import InputSets, Staged, make_sampler, mapped, synchroniser
from kernels.evaluate.workers.exchange import sent, write_value

__all__ = ["Baselines"]

# Of a graph: torch.compile takes 10 to 30 ms for each, so this many are what a minute or two are enough for.
_MOST_OPERATIONS = 4500


class Baselines:
    """The routes by name, each with the float32 precision it was made at; timed on ``sets``."""

    def __init__(self, device: str, sets: InputSets) -> None:
        self._sets = sets
        self._sample = make_sampler(device)
        self._synchronise = synchroniser(device)
        self._routes: dict[str, Callable[..., Any]] = {}
        self._settings: dict[str, Settings] = {}
        self._copies: list[Any] = []
        self._returned: list[Any] = []
        self._timers: Any = None

    def make(
        self,
        model: Callable[..., Any],
        inputs: Sequence[Any],
        peers: Callable[[], Mapping[str, Callable[..., Any]]],
        compiled: bool,
    ) -> dict[str, Any]:
        """Make the routes from the reference and its peers; why those that fail on ``inputs`` do."""
        routes: dict[str, tuple[Callable[..., Any], Settings]] = {"reference": (model, now())}
        made, theirs = apart(peers)
        routes.update({name: (peer, theirs) for name, peer in made.items()})
        if compiled:
            torch._dynamo.reset()
            routes = {"torch.compile of the reference": (torch.compile(model), now())}
        failed = {}
        for name, (route, settings) in routes.items():
            self._settings[name] = settings
            try:
                with self._at_its_precision(name), torch.no_grad():
                    if compiled:
                        _refuse_long(model, inputs)
                    route(*inputs)
                    self._synchronise()
            except _TooLong as error:
                failed[name] = str(error)
                continue
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"[:300]
                continue
            self._routes[name] = route
        return {"routes": list(self._routes), "failed": failed}

    def time(
        self, route: str, sets: int, passes: int, seed: int | None = None, folder: str = ""
    ) -> dict[str, Any]:
        """Nanoseconds of ``passes`` of one route over the first ``sets`` sets.

        With a ``folder`` for files, as the candidate's worker does it on new content: written, read and put
        in place just before, results copied and kept as long. What that leaves in the allocator and in the
        caches is in the time of both.
        """
        self._copies = []
        staged = [self._written_and_read(Path(folder), number) for number in range(sets if folder else 0)]
        moves = self._sets.moves(staged)
        values = [self._sets[number] for number in range(sets)]
        with self._at_its_precision(route), torch.no_grad(), no_collector(collect=False):
            if moves:
                self._routes[route](*values[0])
            for ours, theirs in moves:
                ours.copy_(theirs)
            nanoseconds, outputs = self._sample(self._routes[route], values, passes, seed)
            copies = [mapped(output, torch.Tensor.clone) for output in reversed(outputs)]
        self._copies, self._returned = copies, outputs
        return {"ns": nanoseconds}

    def _written_and_read(self, folder: Path, number: int) -> Staged:
        path = folder / f"set.{number}"
        written = sent(write_value(self._sets[number], path))
        staged = self._sets.stage(folder, written)
        path.unlink()
        return staged

    def cuda_time(
        self, route: str, mode: str, cache: str, sets: int, samples: int, budget: float
    ) -> dict[str, Any]:
        """Samples of the CUDA timer of one route over the first ``sets`` sets."""
        from kernels.evaluate.workers.cuda import Timers, timed

        if self._timers is None:
            self._timers = Timers()
        values = [self._sets[number] for number in range(sets)]
        # A timer reads the tensors it was made for; new content is written into them.
        with self._at_its_precision(route):
            timer = self._timers.of((route, len(values)), self._routes[route], values)
            reply, _ = timed(timer, mode, cache, samples, budget)
        return reply

    def move(self, place: int) -> dict[str, Any]:
        """Have the sets that are loaded next, and what is made of them, lie in other memory."""
        self._sets.drop(0)
        self._copies, self._returned = [], []
        if self._timers is not None:
            self._timers.move(place)
        return {}

    @contextmanager
    def _at_its_precision(self, route: str) -> Iterator[None]:
        """A peer that changes torch's float32 precision does so for itself alone."""
        with kept():
            self._settings[route].restore()
            yield


class _Operations(TorchDispatchMode):
    """Counts what is called while it is entered."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return operation(*args, **(kwargs or {}))


def _refuse_long(model: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Raise where torch.compile would take minutes, as for a loop over the rows of a matrix."""
    with _Operations() as operations:
        model(*inputs)
    if operations.count > _MOST_OPERATIONS:
        raise _TooLong(f"a call makes {operations.count} operations, which take minutes to compile")


class _TooLong(RuntimeError):
    pass
