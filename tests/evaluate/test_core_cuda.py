"""What the judge does on CUDA alone, as far as it can be followed without a GPU."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from simulated_gpu import SimulatedGpu

from kernels.evaluate import judge, rounds_cuda
from kernels.evaluate import rounds as rounds_module
from kernels.evaluate.evaluation import ClockRecord, TimingSection
from kernels.evaluate.measures import launches
from kernels.evaluate.options import Options
from kernels.evaluate.rounds import COMPILED, REFERENCE, Rounds
from kernels.evaluate.rounds_content import Content
from kernels.evaluate.rounds_cuda import CudaRounds
from kernels.evaluate.rules import CANDIDATE, FRESH, OFTEN, REPEATED
from kernels.evaluate.sides import ReferenceFailed
from kernels.evaluate.unavailable import Unavailable
from kernels.evaluate.workers.baselines import Baselines
from kernels.evaluate.workers.calls import InputSets
from kernels.evaluate.workers.candidate import Candidate
from kernels.evaluate.workers.cuda import Timers, timed
from kernels.evaluate.workers.isolation import Worker, WorkerFailed

SECTION = TimingSection(inputs=(), rows=(), verdicts=(), fresh_us=(), fresh_ratio=None, notes=())


class _Trials:
    """As much of the trials as the rounds ask for; every batch of the candidate gives two samples."""

    def __init__(self, **reply: Any) -> None:
        self.skipped: dict[str, str] = {}
        self.compiled: Any = None
        self.reference: Any = None
        self.ask_reference: Any = None
        self.options = Options(device="cuda")
        self.reply = {"samples_us": [5.0, 6.0], "calls": 2, "note": "", "complete": True, **reply}

    def ask_candidate(self, stage: str, do: str, /, **words: Any) -> dict[str, Any]:
        return self.reply


def _rounds(trials: _Trials, mutates: bool = False) -> CudaRounds:
    made = CudaRounds(cast(Any, trials), cast(Any, SimpleNamespace(facts={"mutates": mutates}, words=())))
    made._calls = {FRESH: 2}
    return made


@pytest.mark.parametrize("mutates", [False, True])
def test_batches_of_an_in_place_model_are_not_compared(
    mutates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch calls again on what it has changed: what then comes out was never expected."""
    compared: list[str] = []
    monkeypatch.setattr(Content, "load", lambda self: None)
    monkeypatch.setattr(CudaRounds, "_check_outputs", lambda self, number, count, what: compared.append(what))
    rounds = _rounds(_Trials(), mutates)
    rounds._batch(0, CANDIDATE, "graph", "cold")
    assert rounds._batches == {(CANDIDATE, "graph", "cold"): [5.0, 6.0]}
    assert compared == ([] if mutates else [", graph, cold L2"])


@pytest.mark.parametrize(
    ("route", "kind", "raises"),
    [("a peer", "error", False), ("a peer", "died", True), (REFERENCE, "error", True)],
)
def test_a_peer_that_fails_under_the_timer_has_a_note(route: str, kind: str, raises: bool) -> None:
    def refuse(do: str, /, **words: Any) -> dict[str, Any]:
        raise ReferenceFailed(WorkerFailed(kind, "RuntimeError: no kernel for this"))

    trials = _Trials()
    trials.ask_reference = refuse
    rounds = _rounds(trials)
    if raises:
        with pytest.raises(ReferenceFailed):
            rounds._batch(0, route, "eager", "warm")
    else:
        rounds._batch(0, route, "eager", "warm")
        assert rounds._note_of == {(route, "eager", "warm"): "RuntimeError: no kernel for this"}
        assert rounds._batches == {}


@pytest.mark.parametrize("kind", ["error", "died"])
def test_a_compiled_reference_that_fails_under_the_timer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error has a note in its row; one that died has no rows, and no timing but its own is lost."""
    closed: list[int] = []

    def refuse(do: str, /, **words: Any) -> dict[str, Any]:
        raise WorkerFailed(kind, "no graph")

    monkeypatch.setattr(Content, "load", lambda self: None)
    monkeypatch.setattr(CudaRounds, "_check_outputs", lambda self, number, count, what: None)
    monkeypatch.setattr(CudaRounds, "_take", lambda self, name: None)
    trials = _Trials()
    trials.compiled = SimpleNamespace(close=lambda: closed.append(1), outside_s=0.0)
    trials.ask_compiled = refuse  # type: ignore[attr-defined]
    rounds = _rounds(trials)
    rounds._between(1, [COMPILED])
    assert [key[0] for key in rounds._batches] == [CANDIDATE] * 4
    if kind == "error":
        assert set(rounds._note_of.values()) == {"", "no graph"} and not closed
    else:
        assert trials.skipped == {f"baseline {COMPILED}": "it no graph"} and closed == [1]
        assert rounds._left([REFERENCE, COMPILED]) == [REFERENCE]


def test_a_reference_too_long_to_compile_keeps_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is closed then, and nobody asks it again."""
    closed: list[int] = []
    replies = {"baselines": {"routes": [], "failed": {COMPILED: "a call makes 11600 operations"}}}

    def ask(do: str, /, **words: Any) -> dict[str, Any]:
        if closed:
            raise WorkerFailed("died", "closed by the judge")
        return replies[do]

    monkeypatch.setattr(Content, "load", lambda self: None)
    monkeypatch.setattr(Content, "draw", lambda self, sets: None)
    monkeypatch.setattr(Content, "forward", lambda self: None)
    trials = _Trials()
    trials.compiled = SimpleNamespace(close=lambda: closed.append(1))
    trials.ask_compiled = ask  # type: ignore[attr-defined]
    trials.ask_reference = lambda do, **words: {"routes": [REFERENCE], "failed": {}}
    rounds = _rounds(trials)
    rounds.progress = lambda text: None
    assert rounds._routes() == [REFERENCE] and closed == [1]
    rounds._place(1)
    rounds._draw(2)
    assert trials.skipped == {f"baseline {COMPILED}": "a call makes 11600 operations"}


@pytest.mark.parametrize(
    ("lies", "is_shared", "asked", "severities"),
    [(1, False, 6, []), (9, False, 27, ["violation"]), (9, True, 27, ["note"])],
)
def test_replays_must_disagree_again_and_again(
    lies: int, is_shared: bool, asked: int, severities: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slope is the difference of two times: a busy machine can spoil one, others on the GPU all of them."""
    trials = _Trials()
    trials.candidate = SimpleNamespace(pid=os.getpid(), outside_s=0.0)  # type: ignore[attr-defined]
    trials.reference = SimpleNamespace(pid=os.getpid(), outside_s=0.0)
    took: list[float] = []

    def ask(stage: str, do: str, /, **words: Any) -> dict[str, Any]:
        slow = len(took) < 3 * lies
        took.append(words["samples"] * (5e-3 if slow else 1e-4))
        trials.candidate.outside_s = took[-1]  # type: ignore[attr-defined]
        return {}

    def pace(do: str, /, samples: int) -> dict[str, Any]:
        assert do == "pace"
        trials.reference.outside_s = samples * (6e-3 if is_shared else 1.05e-3)
        return {"us": 1010.0}

    monkeypatch.setattr(trials, "ask_candidate", ask)
    trials.ask_reference = pace
    rounds = _rounds(trials)
    replay = rounds_cuda.TimingRow(CANDIDATE, "graph", "warm", (10.0,), 10, 10.0)
    rounds._check_graph_clock(replace(SECTION, rows=(replay,)))
    assert len(took) == asked
    assert [(one.rule, one.severity) for one in rounds.findings] == [("graph-clock", s) for s in severities]
    assert all(("others use this GPU" in one.message) == is_shared for one in rounds.findings)


@pytest.mark.parametrize("number", [0, 1])
def test_content_is_new_when_it_is_timed_as_new(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches call on the round's content as well: they come after the pass that nobody saw it before."""
    done: list[str] = []
    trials = _Trials()
    trials.options = Options(device="cuda", seconds=1e-9)
    rounds = _rounds(trials)
    rounds._calls[REFERENCE] = 2
    monkeypatch.setattr(rounds_module, "_MOST_ROUNDS", number + 1)
    monkeypatch.setattr(CudaRounds, "_place", lambda self, at: done.clear())
    monkeypatch.setattr(CudaRounds, "_draw", lambda self, sets: done.append("draw"))
    monkeypatch.setattr(CudaRounds, "_take", lambda self, name: done.append(name))
    monkeypatch.setattr(CudaRounds, "_check_outputs", lambda self, *words, **more: None)
    monkeypatch.setattr(CudaRounds, "_clock_batch", lambda self, at: done.append("long batch"))
    monkeypatch.setattr(CudaRounds, "_batch", lambda self, at, name, mode, cache: done.append(name))
    rounds._run_rounds([REFERENCE], 2)
    assert done[:4] == ["draw", FRESH, REPEATED, "long batch"]
    assert sorted(done[4:-1]) == sorted([CANDIDATE, REFERENCE] * 4) and done[-1] == OFTEN


def test_a_slow_baseline_goes_round_fewer_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are called, recorded and copied in every round, however long that takes."""
    asked: dict[str, int] = {}
    took = {REFERENCE: 0.04, "a peer": 1e-4, "slow": 0.2}
    trials = _Trials()
    trials.reference = SimpleNamespace(outside_s=0.0)
    trials.candidate = SimpleNamespace(outside_s=0.0)  # type: ignore[attr-defined]

    def ask(do: str, /, route: str, sets: int, **words: Any) -> dict[str, Any]:
        trials.reference.outside_s, asked[route] = took[route], sets
        return trials.reply

    trials.ask_reference = ask
    monkeypatch.setattr(Rounds, "_plan", lambda self, routes: None)
    monkeypatch.setattr(Content, "load", lambda self: None)
    monkeypatch.setattr(CudaRounds, "_check_outputs", lambda self, number, count, what: None)
    rounds = _rounds(trials)
    rounds._calls[FRESH] = 16
    rounds._plan(list(took))
    for name in took:
        rounds._batch(0, name, "eager", "warm")
    assert asked == {REFERENCE: 2, "a peer": 16, "slow": 2}
    assert rounds._slow == {"slow"}


def test_every_round_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    trials = _Trials()
    trials.ask_candidate = lambda stage, do, **words: asked.append((do, *words.values())) or {}  # type: ignore
    trials.ask_reference = lambda do, **words: asked.append((do, *words.values())) or {}
    monkeypatch.setattr(Content, "load", lambda self: asked.append(("load", 0)))
    rounds = _rounds(trials)
    rounds._place(0)
    assert rounds._loaded and not asked
    rounds._loaded = False
    rounds._place(2)
    # Called on all sets before any is timed: what it allocates is there again.
    assert asked == [("move", 2), ("load", 0), ("time", 2, 1), ("move", 2)]
    assert rounds._loaded


def test_timers_follow_the_sets_to_their_new_places(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, sizes = SimulatedGpu(), list[int]()
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: sizes.append(0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 36, 1 << 37))
    monkeypatch.setattr(torch, "empty", lambda size, **words: sizes.append(size) or empty(0))

    def model(x: str) -> str:
        gpu.launch(5.0)
        return f"output of {x}"

    timers = Timers(cast(Any, gpu))
    timer = timers.of("candidate", model, [["a"], ["b"]])
    for cache in ("warm", "cold"):
        assert timed(timer, "graph", cache, 3, 1.0)[1] == ["output of a", "output of b"]
    assert timers.of("candidate", model, [["never"], ["asked"]]) is timer
    for place in range(1, 12):
        timers.move(place)
    assert timer.outputs == [None, None] and sizes[::2] == [0] * 11
    assert len(set(sizes[1::2])) == 11
    assert timers.of("candidate", model, [["c"], ["d"]]) is timer
    assert timed(timer, "graph", "cold", 3, 1.0)[1] == ["output of c", "output of d"]


def test_a_baseline_is_timed_where_its_content_lies_now(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, seen = SimulatedGpu(), list[Any]()

    def model(x: torch.Tensor) -> torch.Tensor:
        gpu.launch(5.0)
        seen.append(x)
        return x

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 0))
    sets = InputSets("cpu")
    baselines = Baselines("cpu", sets)
    baselines._timers = Timers(cast(Any, gpu))
    assert baselines.make(model, [torch.ones(2)], dict, compiled=False)["routes"] == [REFERENCE]
    for place in (0, 1):
        baselines.move(place)
        content = [[torch.full((2,), float(10 * place + number))] for number in range(2)]
        sets._values.update(enumerate(content))
        seen.clear()
        reply = baselines.cuda_time(REFERENCE, "graph", "warm", sets=2, samples=3, budget=1.0)
        assert reply["samples_us"] == pytest.approx([5.0] * 3, rel=0.01) and reply["complete"]
        assert {id(x) for x in seen} == {id(value[0]) for value in content}


class _Sampler:
    """A record of clocks that fails where it is told to."""

    fails = ""

    def __init__(self, device: str) -> None:
        self.closed = False
        self._say("made")

    def __enter__(self) -> _Sampler:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def start(self) -> None:
        self._say("start")

    def stop(self) -> ClockRecord:
        self._say("stop")
        return ClockRecord((1980,), (3201,), 1980, (), (), "")

    def _say(self, step: str) -> None:
        if step == self.fails:
            raise Unavailable(f"no clocks at {step}")


@pytest.mark.parametrize("fails", ["", "made", "start", "stop"])
def test_clocks_that_are_not_told_cost_no_second_timing(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(_Sampler, "fails", fails)
    monkeypatch.setattr(rounds_cuda, "Sampler", _Sampler)
    monkeypatch.setattr(rounds_cuda, "_this_gpu", lambda: "GPU-1")
    monkeypatch.setattr(Rounds, "run", lambda self: ran.append(1) or SECTION)
    trials = _Trials()
    section = _rounds(trials).run()
    assert len(ran) == 1
    assert trials.skipped == ({"clocks": f"no clocks at {fails}"} if fails else {})
    assert (section.clocks is None) == bool(fails)


def test_a_profiler_that_sees_nothing_is_not_the_candidates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def timer(self: Candidate, values: list[Any]) -> Any:
        def seen() -> int:
            raise Unavailable("torch's profiler does not see what runs on this GPU")

        return SimpleNamespace(kernels_seen=seen)

    monkeypatch.setattr(Candidate, "_timer", timer)
    reply = Candidate("cpu").kernels_seen(0)
    assert reply["kernels_seen"] is None and "does not see" in reply["unavailable"]
    monkeypatch.setattr(Rounds, "_judged", lambda self, rows: SECTION)
    monkeypatch.setattr(CudaRounds, "_row", lambda self, name: rounds_cuda.TimingRow(name, "eager", "warm"))
    trials = _Trials(**reply)
    rounds = _rounds(trials)
    assert rounds._section([]).kernels_seen is None
    assert rounds.findings == [] and "does not see" in trials.skipped["kernels seen"]


@pytest.mark.parametrize("blind", [True, False])
def test_no_launch_is_said_only_by_a_profiler_that_sees(blind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = {"cat": "kernel", "name": "fill", "ts": 1, "dur": 2, "args": {}}
    traces: list[list[Any]] = [[], [], [] if blind else [kernel]]
    monkeypatch.setattr(
        torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CUDA}
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(launches, "_trace", lambda call: {"traceEvents": traces.pop(0)})
    if blind:
        with pytest.raises(Unavailable, match="does not see"):
            launches.record(lambda: None)
    else:
        assert launches.record(lambda: None) == ()
    assert traces == []


def test_the_device_is_proven_without_the_candidate_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ran out of memory lives on: what it holds must be free before the device is called unfit."""
    steps: list[str] = []

    def probe(*command: Any, **words: Any) -> subprocess.CompletedProcess[str]:
        steps.append("probe")
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(judge.subprocess, "run", probe)
    run = object.__new__(judge._Run)
    run.options, run.findings = Options(device="cuda"), []
    candidate = SimpleNamespace(close=lambda: steps.append("close"))
    run.trials = cast(Any, SimpleNamespace(candidate=candidate))
    run.prove_device()
    assert steps == ["close", "probe"] and run.findings == []


def test_a_process_that_the_driver_keeps_does_not_keep_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> int:
        waited.append(seconds)
        raise subprocess.TimeoutExpired("a worker", seconds)

    worker = object.__new__(Worker)
    worker._process = cast(Any, SimpleNamespace(pid=1 << 30, wait=wait))
    worker._mark = "KERNELS_WORKER=none"
    worker._kill()
    assert len(waited) == 1
