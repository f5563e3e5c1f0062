"""How long a call takes on CUDA: eager and graph replay, with a warm and with a cold L2 cache.

=====  =====  ==========================================================================
mode   cache  what a sample is
=====  =====  ==========================================================================
eager  warm   many calls in a row, from an idle device to an idle device, by the host's
              clock, divided by the calls: the host's pace where that is the slower one
eager  cold   one call on an idle device whose L2 was flushed, likewise: its latency, with
              the host's way to the GPU and back in it
graph  warm   one replay of a graph that holds many calls, between two events, divided by
              the calls: no host in between; short calls fill about a millisecond
graph  cold   one replay of a graph that holds one call, between two events; before it, on
              the same stream, an L2 flush and a delay that lets the host get ahead
=====  =====  ==========================================================================

Calls go round the ring of input sets, so neighbours never have the same content. "Warm"
means that nothing is done to the cache: a ring larger than the L2 flushes itself. All
streams are awaited: eager ends with a wait for the whole device, and a graph ends when
every stream that was forked into it has ended (one that was not joined does not capture).
Nothing is subtracted; what the clock reads around nothing is in the note.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kernels.errors import first_line
from kernels.evaluate.timing.cuda_tools import CudaTools, DriverError
from kernels.evaluate.timing.host import no_collector

__all__ = ["CaptureFailed", "Sampled", "Timer"]

Call = Callable[[], object]
# Microseconds a call, in the order taken; calls in a sample; what there is to say.
Sampled = tuple[tuple[float, ...], int, str]

# A sample this long hides its own start and end: a graph's launch, a wait for the device.
_GRAPH_SAMPLE_US = 1_000.0
_EAGER_SAMPLE_US = 4_000.0
_MOST_CALLS = 1_000
# Nodes of a graph beyond which recording and uploading it takes longer than it is worth.
_MOST_NODES = 20_000
_LEAST_SAMPLES = 5
# A call so slow that this is over is not run again to prepare.
_PREPARE_SECONDS = 0.5
# The clocks count as settled when two stretches of this length differ by less than this share.
_STRETCH_US = 20_000.0
_SETTLED = 0.005
_LONGEST_WARM_UP_US = 500_000.0
# Before every batch: the neighbours' turn left their own code in the caches, and idling lowers clocks.
_BATCH_WARM_UP_US = 3_000.0


class CaptureFailed(RuntimeError):
    """The call cannot be recorded into a CUDA graph, or leaves nothing in it; the message says why."""


@dataclass
class _Recorded:
    """A graph of ``calls`` calls, what the last call of each set returned, and the work in the graph.

    ``ahead_us`` is how long the GPU must be kept busy for the host to enqueue a replay meanwhile.
    """

    graph: Any
    calls: int
    outputs: list[Any]
    work: int
    ahead_us: float


class Timer:
    """Times one way to a result over a ring of input sets.

    ``call_sets`` holds one callable per input set, of equal shapes and different
    content; each returns its outputs. ``tools`` are those made before the candidate
    was imported; without them new ones are bound now. The first use of each mode warms
    up; graphs are recorded once, and read the tensors the callables read: new content is
    written in place, and :meth:`rebind` is for other tensors. :attr:`outputs` are what the last
    samples returned, one per set, for checking; they are overwritten by the next.
    ``copied`` makes a copy of an output that a later sample would overwrite.
    """

    def __init__(
        self,
        call_sets: Sequence[Call],
        device_index: int = 0,
        *,
        tools: CudaTools | None = None,
        copied: Callable[[Any], Any] | None = None,
    ) -> None:
        if not call_sets:
            raise ValueError("a Timer needs at least one call")
        self._calls = tuple(call_sets)
        self._tools = tools if tools is not None else CudaTools(device_index)
        self._copied = copied if copied is not None else _as_it_is
        self._pair = (self._tools.event(), self._tools.event())
        self._pool: Any = None
        self._singles: tuple[_Recorded, ...] = ()
        self._many: tuple[_Recorded, ...] = ()
        self._single_us = 0.0
        self._empty_pair_us = self._tools.empty_pair_us()
        self._turn = 0
        self._settled: set[str] = set()
        self.outputs: list[Any] = [None] * len(self._calls)

    # -- what is asked for ----------------------------------------------------------------

    def eager(
        self, samples: int = 100, calls: int | None = None, *, cache: str = "warm", seconds: float = 2.0
    ) -> Sampled:
        """At most ``samples`` of ``calls`` calls each (None: as many as fill 4 ms; cold: always 1).

        Stops after ``seconds`` once there are 5. Raises whatever the call raises.
        """
        _check_cache(cache)
        self._forget_outputs()
        with no_collector():
            self._warm_up("eager", lambda: self._eager_us(1))
            if cache == "cold":
                taken = self._sample(lambda: self._eager_us(1, flush=True), samples, seconds)
                self._complete(lambda: self._eager_us(1))
                note = (
                    f"one call on an idle GPU; a wait for nothing takes {self._empty_wait_us():.1f} us of it"
                )
                return taken, 1, note
            count = calls if calls is not None else self._eager_calls()
            taken = self._sample(lambda: self._eager_us(count), samples, seconds)
            self._complete(lambda: self._eager_us(1))
        return tuple(each / count for each in taken), count, ""

    def graph(self, samples: int = 100, *, cache: str = "warm", seconds: float = 2.0) -> Sampled:
        """At most ``samples`` graph replays; stops after ``seconds`` once there are 5.

        Raises :class:`CaptureFailed` with the reason.
        """
        _check_cache(cache)
        self._forget_outputs()
        with no_collector():
            self._record_singles()
            if cache == "cold":
                recorded = self._singles
            else:
                self._record_many()
                recorded = self._many
            calls = recorded[0].calls
            self._warm_up("graph", lambda: self._replay_us(recorded))
            self._forget_outputs()
            taken = self._sample(lambda: self._replay_us(recorded, cache == "cold"), samples, seconds)
            self._complete(lambda: self._replay_us(recorded))
        note = f"an empty pair of events reads {self._empty_pair_us:.2f} us; not subtracted"
        return tuple(each / calls for each in taken), calls, note

    def rebind(self, call_sets: Sequence[Call]) -> None:
        """Time the same work over other tensors, as many sets as before. Graphs are recorded anew."""
        if len(call_sets) != len(self._calls):
            raise ValueError(f"{len(call_sets)} sets; this Timer was made for {len(self._calls)}")
        self.unbind()
        self._calls = tuple(call_sets)

    def unbind(self) -> None:
        """Let go of all tensors; :meth:`rebind` comes before the next use."""
        self._calls = (_unbound,) * len(self._calls)
        self._pool, self._singles, self._many, self._turn = None, (), (), 0
        self._forget_outputs()

    def kernels_seen(self) -> int:
        """Kernels, copies and fills that one call puts on the GPU.

        From the nodes of its recorded graph, of which every replay runs each; where the
        call cannot be recorded, from the GPU's own records of one eager call.
        """
        try:
            self._record_singles()
        except CaptureFailed:
            from kernels.evaluate.measures.launches import record

            return sum(launch.count for launch in record(self._calls[0]))
        return self._singles[0].work

    def enqueue(self, samples: int = 100, calls: int = 20, *, seconds: float = 1.0) -> Sampled:
        """What one call costs the calling thread before it returns; the GPU is idle when a sample starts.

        Mean of ``calls`` calls in a row, which must fit into the driver's launch queue (1024 launches):
        past it, a launch waits for the GPU.
        """
        tools, count = self._tools, calls

        def sample() -> float:
            tools.wait()
            start = tools.clock_ns()
            self._run(count)
            elapsed = tools.clock_ns() - start
            tools.wait()
            return elapsed / 1e3

        with no_collector():
            self._warm_up("eager", lambda: self._eager_us(1))
            taken = self._sample(sample, samples, seconds)
        return tuple(each / count for each in taken), count, ""

    # -- samples --------------------------------------------------------------------------

    def _sample(self, sample: Callable[[], float], samples: int, seconds: float) -> tuple[float, ...]:
        clock = self._tools.clock_ns
        begun = clock()
        while (clock() - begun) / 1e3 < min(_BATCH_WARM_UP_US, seconds * 1e5):
            sample()
        taken: list[float] = []
        while len(taken) < samples and (len(taken) < _LEAST_SAMPLES or (clock() - begun) / 1e9 < seconds):
            taken.append(sample())
        return tuple(taken)

    def _forget_outputs(self) -> None:
        """What earlier samples returned has other content, or lies where other graphs write."""
        self.outputs = [None] * len(self._calls)

    def _complete(self, sample: Callable[[], float]) -> None:
        """Call the sets that no sample has called, for their outputs."""
        for _ in self._calls:
            if all(output is not None for output in self.outputs):
                return
            sample()

    def _run(self, count: int) -> None:
        ring, outputs, turn = self._calls, self.outputs, self._turn
        size = len(ring)
        for _ in range(count):
            outputs[turn] = ring[turn]()
            turn = (turn + 1) % size
        self._turn = turn

    def _eager_us(self, count: int, flush: bool = False) -> float:
        tools = self._tools
        clock = tools.clock_ns
        if flush:
            tools.flush()
        tools.wait()
        start = clock()
        self._run(count)
        tools.wait()
        return (clock() - start) / 1e3

    def _eager_calls(self) -> int:
        each_us = self._eager_us(1)
        if each_us < _EAGER_SAMPLE_US:
            each_us = min(self._eager_us(10) / 10 for _ in range(3))
        return max(1, min(_MOST_CALLS, math.ceil(_EAGER_SAMPLE_US / max(each_us, 1.0))))

    def _empty_wait_us(self) -> float:
        tools = self._tools
        taken = []
        for _ in range(21):
            tools.wait()
            start = tools.clock_ns()
            tools.wait()
            taken.append((tools.clock_ns() - start) / 1e3)
        return median(taken)

    def _replay_us(self, recorded: Sequence[_Recorded], flush: bool = False) -> float:
        """One replay between two events, enqueued as a whole before the GPU gets to the first of them."""
        tools, (start, end) = self._tools, self._pair
        self._turn = (self._turn + 1) % len(recorded)
        one = recorded[self._turn]
        if flush:
            tools.flush()
        tools.delay(one.ahead_us)
        tools.record(start)
        tools.replay(one.graph)
        tools.record(end)
        tools.wait()
        for index, output in enumerate(one.outputs):
            if output is not None:
                # Another graph of the same pool may keep its intermediate results where this one's output is.
                self.outputs[index] = output if len(recorded) == 1 else self._copied(output)
        return tools.elapsed_us(start, end)

    # -- graphs ---------------------------------------------------------------------------

    def _record_singles(self) -> None:
        """One graph for each input set, and the time of a replay."""
        if self._singles:
            return
        clock = self._tools.clock_ns
        begun = clock()
        for _ in range(3):  # what a first call builds, tunes or allocates must not be recorded
            self._run(len(self._calls))
            self._tools.wait()
            if (clock() - begun) / 1e9 > _PREPARE_SECONDS:
                break
        singles = tuple(self._record([index]) for index in range(len(self._calls)))
        taken: list[float] = []
        begun = clock()
        while not taken or (len(taken) < 11 and (clock() - begun) / 1e9 < _PREPARE_SECONDS):
            taken.append(self._replay_us(singles))
        self._single_us = median(taken)
        self._singles = singles

    def _record_many(self) -> None:
        """A graph of many short calls; a call that is long enough by itself needs none."""
        if self._many:
            return
        size = len(self._calls)
        wanted = _GRAPH_SAMPLE_US / max(self._single_us, 0.5)
        work = max(one.work for one in self._singles)
        rounds = min(math.ceil(wanted / size), _MOST_CALLS // size, _MOST_NODES // (work * size))
        if wanted <= 1 or rounds < 1:
            self._many = self._singles
        else:
            self._many = (self._record(list(range(size)) * rounds),)

    def _record(self, order: Sequence[int]) -> _Recorded:
        tools = self._tools
        graph = tools.new_graph(keep_graph=True)
        outputs: list[Any] = [None] * len(self._calls)
        if self._pool is None:
            # One pool for all: they are replayed one after the other, and outputs are kept alive.
            self._pool = tools.pool_handle()
        stream = tools.save_stream()
        try:
            with tools.capture(graph, pool=self._pool):
                for index in order:
                    outputs[index] = self._calls[index]()
        except Exception as error:  # the call's own, or CUDA's word on what may not be recorded
            tools.abandon_capture(self._pool, stream)
            self._pool = None
            raise self._failed(error) from error
        work = tools.graph_work(tools.raw_graph(graph))
        if not work:
            raise CaptureFailed(
                "the call leaves nothing in the graph: it starts no work, or starts it on a stream that is "
                "not torch's current one"
            )
        tools.instantiate(graph)
        return _Recorded(graph, len(order), outputs, work, self._ahead_us(graph))

    def _failed(self, error: Exception) -> CaptureFailed:
        cause: BaseException = error.__context__ or error  # what the call met, before the capture's own end
        try:
            self._tools.wait()
        except DriverError as broken:
            return CaptureFailed(f"{first_line(cause)}; and the device did not recover: {broken}")
        return CaptureFailed(first_line(cause))

    def _ahead_us(self, graph: Any) -> float:
        tools = self._tools
        taken_us = 0.0
        for _ in range(2):  # the first uploads the graph
            tools.wait()
            start = tools.clock_ns()
            tools.replay(graph)
            taken_us = (tools.clock_ns() - start) / 1e3
        tools.wait()
        return 20.0 + 2 * taken_us

    # -- warming up -----------------------------------------------------------------------

    def _warm_up(self, mode: str, sample: Callable[[], float]) -> None:
        """Run until the clocks have settled: two stretches of 20 ms with one median, for 0.5 s at most."""
        if mode in self._settled:
            return
        spent, before = 0.0, math.inf
        while spent < _LONGEST_WARM_UP_US:
            stretch: list[float] = []
            begun = self._tools.clock_ns()
            while not stretch or (self._tools.clock_ns() - begun) / 1e3 < _STRETCH_US:
                stretch.append(sample())
            spent += (self._tools.clock_ns() - begun) / 1e3
            now = median(stretch)
            if spent >= 3 * _STRETCH_US and abs(now - before) <= _SETTLED * now:
                break
            before = now
        self._settled.add(mode)


def _unbound() -> None:
    raise RuntimeError("a Timer that was unbound must be bound again before it is used")


def _as_it_is(output: Any) -> Any:
    return output


def _check_cache(cache: str) -> None:
    if cache not in ("warm", "cold"):
        raise ValueError(f"cache={cache!r} is not supported; supported: 'warm', 'cold'")
