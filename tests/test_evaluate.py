"""What is true and how fast: comparisons, timing, and what a check and a bench make of them."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from simulated_gpu import Launches, SimulatedGpu, stand_in

from kernels.errors import CompileError, ToolchainError
from kernels.evaluate import bench as benching
from kernels.evaluate import check as checking
from kernels.evaluate import elements, precision
from kernels.evaluate.correctness import compare, compare_with_oracle, largest_error
from kernels.evaluate.result import BenchRow, Timing, as_json
from kernels.evaluate.timing import host as timing
from kernels.evaluate.timing.cuda import CaptureFailed, Sampled
from kernels.evaluate.timing.processes import time_processes
from kernels.evaluate.timing.turns import take_turns, time_eager
from kernels.problem import Case, Problem, Request, Tolerance, Variant
from kernels.report.json import json_text

INF, NAN = math.inf, math.nan


# -- correctness -----------------------------------------------------------------------------


def test_equal_tensors_pass_with_no_error() -> None:
    x = torch.randn(3, 4)
    found = compare(x, x.clone(), Tolerance())
    assert found.passed and found.reason == ""
    assert (found.max_abs, found.max_rel, found.mismatched, found.total) == (0.0, 0.0, 0, 12)
    assert found.first_bad is None


def test_a_failing_comparison_says_where_and_how_much() -> None:
    expected = torch.zeros(2, 3, 4)
    expected[1, 0, 2] = 4.0
    got = expected.clone()
    got[1, 0, 2] = 4.5
    got[1, 2, 3] = -2.0
    found = compare(got, expected, Tolerance())
    assert not found.passed
    assert found.first_bad == (1, 0, 2)
    assert (found.got, found.expected) == (4.5, 4.0)
    assert (found.mismatched, found.total) == (2, 24)
    assert found.max_abs == 2.0
    assert found.max_rel == 0.125  # of the elements whose reference is not zero
    assert found.reason == (
        "2 of 24 elements differ by more than 0.0001 + 0.0001*|reference|; "
        "the first at (1, 0, 2): 4.5, the reference has 4; the largest difference is 2"
    )


def test_tolerance_is_absolute_plus_relative() -> None:
    expected = torch.tensor([100.0, 0.0], dtype=torch.float64)
    tolerance = Tolerance(atol=1e-3, rtol=1e-2)
    just_inside = expected + torch.tensor([1.0, 0.999e-3], dtype=torch.float64)
    just_outside = expected + torch.tensor([1.0011, 0.0], dtype=torch.float64)
    assert compare(just_inside, expected, tolerance).passed
    assert compare(just_outside, expected, tolerance).first_bad == (0,)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (INF, -INF, False),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (INF, 1.0, False),
        (1.0, INF, False),  # atol + rtol * inf would allow anything
        (NAN, INF, False),
    ],
)
def test_values_that_are_not_finite(got: float, expected: float, same: bool) -> None:
    found = compare(torch.tensor([0.0, got]), torch.tensor([0.0, expected]), Tolerance())
    assert found.passed is same
    assert found.max_abs == (0.0 if same else INF)
    assert found.first_bad == (None if same else (1,))
    assert not math.isnan(found.max_rel)
    oracle = torch.tensor([0.0, expected], dtype=torch.float64)
    assert largest_error(torch.tensor([0.0, got]), oracle) == (0.0 if same else INF)


def test_shape_and_dtype_must_agree() -> None:
    x = torch.zeros(2, 3)
    for other, words in (
        (torch.zeros(3, 2), "shape is (3, 2), the reference's is (2, 3)"),
        (x.double(), "float64"),
    ):
        found = compare(other, x, Tolerance())
        assert not found.passed and words in found.reason
        assert found.mismatched == 6
    assert largest_error(torch.zeros(3, 2), x.double()) == INF


def test_empty_tensors_agree() -> None:
    empty = torch.zeros(0, 4)
    assert compare(empty, empty, Tolerance()).passed
    assert compare_with_oracle(empty, empty, empty.double(), Tolerance()).passed


def test_large_tensors_are_compared_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(elements._PART, "cpu", 7)
    expected = torch.arange(60, dtype=torch.float32).reshape(4, 5, 3)
    got = expected.clone()
    got[2, 1, 2] += 1  # flat 35: the first of its piece
    got[3, 4, 2] += 3
    found = compare(got.transpose(0, 1).contiguous().transpose(0, 1), expected, Tolerance())
    assert found.first_bad == (2, 1, 2)
    assert (found.mismatched, found.max_abs) == (2, 3.0)
    assert largest_error(got, expected.double()) == 3.0


def test_the_references_own_error_is_the_yardstick() -> None:
    oracle = torch.zeros(4, dtype=torch.float64)
    reference = torch.tensor([0.0, 1e-3, 0.0, 0.0])
    tolerance = Tolerance(oracle_ratio=2.0, oracle_floor=1e-6)
    assert compare_with_oracle(torch.full((4,), 1.9e-3), reference, oracle, tolerance).passed
    found = compare_with_oracle(torch.full((4,), 2.1e-3), reference, oracle, tolerance)
    assert not found.passed
    assert found.error == pytest.approx(2.1e-3)
    assert found.reference_error == pytest.approx(1e-3)
    assert "0.0021" in found.reason and "0.001" in found.reason


# -- timing ----------------------------------------------------------------------------------


def test_neighbours_take_turns_and_the_order_turns_too() -> None:
    order: list[str] = []
    length = {"a": 400.0, "b": 2000.0}

    def sample(name: str, count: int) -> float:
        order.append(name)
        return length[name] * count

    found = timing._interleaved(["a", "b"], sample, seconds=0.05)
    assert found["a"].calls == 3  # 3 * 400 us fill a millisecond
    assert found["b"].calls == 1
    assert found["a"].median_us == found["a"].low_us == found["a"].high_us == 400.0
    assert found["b"].median_us == 2000.0
    samples = order[-(found["a"].samples + found["b"].samples) :]
    assert samples[:6] == ["a", "b", "b", "a", "a", "b"]
    # Each takes about its 50 ms.
    assert abs(found["a"].samples * 3 * 400 - 50_000) <= 1200
    assert abs(found["b"].samples * 2000 - 50_000) <= 2000


def test_quartiles_of_scripted_samples() -> None:
    script = iter([1000.0, 1000.0, *(1000.0 + 100 * step for step in range(5))])

    def sample(name: str, count: int) -> float:
        return next(script) * count

    found = timing._interleaved(["only"], sample, seconds=1e-3)
    assert found["only"].samples == 5  # the least there is, though one fills the millisecond
    assert (found["only"].low_us, found["only"].median_us, found["only"].high_us) == (1100.0, 1200.0, 1300.0)


def test_a_very_slow_call_is_not_repeated_for_long() -> None:
    runs = []

    def sample(name: str, count: int) -> float:
        runs.append(count)
        return 2e6 * count

    found = timing._interleaved(["slow"], sample, seconds=0.1)
    assert found["slow"] == Timing(2e6, 2e6, 2e6, samples=1, calls=1)
    assert runs == [1, 1]


def test_host_timing_runs_the_calls_it_counts() -> None:
    calls = {"a": 0, "b": 0}

    def bump(name: str) -> Callable[[], object]:
        def call() -> None:
            calls[name] += 1

        return call

    found = timing.time_host({name: bump(name) for name in calls}, seconds=0.002)
    for name, count in calls.items():
        assert count > found[name].samples * found[name].calls
        assert 0 < found[name].low_us <= found[name].median_us <= found[name].high_us


def test_what_is_prepared_before_a_sample_is_not_timed() -> None:
    order: list[str] = []
    found = timing.time_host(
        {"a": lambda: order.append("call")}, seconds=0.002, prepare={"a": lambda: order.append("prepare")}
    )
    assert order[0] == "prepare" and order.count("prepare") < order.count("call")
    assert order.count("prepare") > found["a"].samples  # and before those that find the count


def test_batches_take_turns_and_the_first_is_not_counted() -> None:
    asked: list[tuple[str, int]] = []
    now_us = 0.0
    length = {"short": 100.0, "long": 20_000.0}

    def take(name: str, samples: int) -> Sampled:
        nonlocal now_us
        asked.append((name, samples))
        now_us += length[name] * samples * 2
        first = len(asked) <= 3
        return (1e6 if first and name == "short" else length[name],) * samples, 2, ""

    def no_graph(name: str, samples: int) -> Sampled:
        if name == "neither":
            raise CaptureFailed("RuntimeError: it synchronises")
        if name == "large":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64 GiB\nmore words")
        return take(name, samples)

    names = ["short", "neither", "long", "large"]
    found, reasons = take_turns(names, no_graph, seconds=0.2, clock_ns=lambda: int(now_us * 1e3))
    assert list(found) == ["short", "long"]
    assert reasons == {
        "neither": "no graph: RuntimeError: it synchronises",
        "large": "OutOfMemoryError: CUDA out of memory. Tried to allocate 64 GiB",
    }
    # One sample first, whatever it took; a long call takes few at a time.
    assert asked[:4] == [("short", 1), ("long", 1), ("short", 3), ("long", 3)]
    assert asked[4:6] == [("long", 3), ("short", 3)], "the order turns"
    assert found["long"] == Timing(20_000.0, 20_000.0, 20_000.0, 6, 2)
    assert found["short"].median_us == 100.0 and found["short"].samples > 90


@pytest.mark.gpu
def test_cuda_timing_agrees_with_itself() -> None:
    x = torch.randn(2048, 2048, device="cuda")
    calls = {"matmul": lambda: x @ x, "add": lambda: x + 1}
    found = time_eager(calls, "cuda", seconds=0.1)
    assert list(found) == list(calls)
    assert all(0 < t.low_us <= t.median_us <= t.high_us for t in found.values())
    # A large product takes the GPU longer than a sum.
    assert found["matmul"].median_us > found["add"].median_us


# -- check and bench, on a problem of four lines -----------------------------------------------


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Wrong(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x + x
        out[..., -1] += 1
        return out


class Raises(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("rows=3 is not supported")


def make_inputs(
    rows: int, head_dim: int, *, dtype: str = "float32", seed: int = 0, device: str = "cpu"
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, head_dim, generator=generator).to(device, getattr(torch, dtype))]


def problem_with(model_new: type, **changes: Any) -> Problem:
    variant = Variant(
        "plain", "cpu", "", "", lambda request: (), lambda request: request.head_dim < 100, "the only one"
    )
    problem = Problem(
        name="doubled",
        binding="",
        variants=(variant,),
        cases=(
            Case("other", "not the default", {"rows": 1, "head_dim": 1}),
            Case("default", "the inputs of get_inputs", {"rows": 3, "head_dim": 5}),
        ),
        model=Doubled,
        model_new=model_new,
        get_inputs=lambda: [torch.randn(3, 5)],
        get_init_inputs=list,
        make_inputs=make_inputs,
        oracle=lambda x: x.double() * 2,
        jitter=lambda seed: Case(
            f"jitter_{seed}", "a random shape", {"rows": 2, "head_dim": 8 * (seed + 1)}, "float64"
        ),
        default_request=lambda device, arch: Request(device, arch, "float32", 5, 1),
        flops=lambda shape: shape["rows"] * shape["head_dim"],
        least_bytes=lambda shape, dtype: 8 * math.prod(shape.values()),
    )
    return dataclasses.replace(problem, **changes)


def test_a_plan_is_the_default_and_the_jittered_shapes() -> None:
    trials = checking.plan(problem_with(Doubled), "cpu", "x86-64", 2)
    assert [t.case.name for t in trials] == ["default", "jitter_0", "jitter_1"]
    assert [t.request.head_dim for t in trials] == [5, 8, 16]
    assert [t.request.dtype for t in trials] == ["float32", "float64", "float64"]
    assert [tuple(t.make_inputs()[0].shape) for t in trials] == [(3, 5), (2, 8), (2, 16)]
    assert trials[0].variant == "plain"
    assert dataclasses.replace(trials[0], request=Request("cpu", "", "float32", 200)).variant == ""


def test_a_plan_for_a_variant_holds_what_it_serves() -> None:
    wide = Variant("wide", "cpu", "", "", lambda request: (), lambda r: r.head_dim >= 16, "", chosen=False)
    problem = problem_with(Doubled)
    case = Case("wide", "", {"rows": 2, "head_dim": 64})
    problem = dataclasses.replace(problem, variants=(wide, *problem.variants), cases=(*problem.cases, case))
    trials = checking.plan(problem, "cpu", "x86-64", 2, "wide")
    assert [t.case.name for t in trials] == ["wide", "jitter_1", "jitter_2"]
    assert {t.variant for t in trials} == {"wide"} and {t.asked for t in trials} == {"wide"}
    assert tuple(trials[0].make_inputs()[0].shape) == (2, 64)
    plain = checking.plan(problem, "cpu", "x86-64", 2)
    assert {t.variant for t in plain} == {"plain"}, "a variant that is not chosen is not picked"
    with pytest.raises(ValueError, match=r"no variant 'dance'; it has: wide \(cpu\), plain \(cpu\)"):
        checking.plan(problem, "cpu", "x86-64", 2, "dance")
    none = dataclasses.replace(wide, serves=lambda request: False)
    with pytest.raises(ValueError, match="variant 'wide' does not serve .* variants that do: plain"):
        checking.plan(
            dataclasses.replace(problem, variants=(none, *problem.variants[1:])), "cpu", "x", 2, "wide"
        )


def test_group_size_comes_from_the_heads() -> None:
    case = Case("grouped", "", {"num_heads": 12, "num_kv_heads": 3, "head_dim": 8})
    assert checking.request_of(problem_with(Doubled), case, "cpu", "x").group_size == 4


def test_a_right_operator_passes() -> None:
    row = checking.run(checking.plan(problem_with(Doubled), "cpu", "x86-64", 0)[0], seconds=0.002)
    assert row.passed and row.reason == ""
    assert (row.problem, row.device, row.variant, row.case) == ("doubled", "cpu", "plain", "default")
    assert row.against_reference is not None and row.against_reference.max_abs == 0
    assert row.against_oracle is not None and row.against_oracle.passed
    assert row.time is not None and row.reference_time is not None


def test_a_wrong_operator_fails_and_says_where() -> None:
    row = checking.run(checking.plan(problem_with(Wrong), "cpu", "x86-64", 0)[0], seconds=0.002)
    assert not row.passed
    assert "3 of 15" in row.reason and "(0, 4)" in row.reason


def test_an_operator_that_raises_fails_with_its_words() -> None:
    row = checking.run(checking.plan(problem_with(Raises), "cpu", "x86-64", 0)[0])
    assert not row.passed and row.reason == "ValueError: rows=3 is not supported"
    assert row.against_reference is None and row.time is None


def test_one_failing_build_fails_its_own_trials() -> None:
    trials = checking.plan(problem_with(Doubled), "cpu", "x86-64", 2)
    asked: list[int] = []

    def build(some: Sequence[checking.Trial]) -> None:
        asked.append(len(some))
        for trial in some:
            if trial.case.name == "jitter_0":
                raise CompileError("doubled-plain", "error: expected ';'")

    reasons = checking.prepare(trials, build)
    assert reasons[0] == reasons[2] == ""
    assert "expected ';'" in reasons[1] and reasons[1].startswith("CompileError")
    assert asked == [3, 1, 1, 1]
    assert checking.prepare(trials, lambda some: None) == ["", "", ""]


def test_a_missing_compiler_is_each_trials_reason() -> None:
    def build(some: Sequence[checking.Trial]) -> None:
        raise ToolchainError("no C++ compiler found", "apt-get install g++")

    for reason in checking.prepare(checking.plan(problem_with(Doubled), "cpu", "x86-64", 1), build):
        assert "apt-get install g++" in reason


def test_targets_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ((device, arch),) = checking.targets(None)
    assert device == "cpu" and arch
    with pytest.raises(ValueError, match="no NVIDIA GPU"):
        checking.targets("cuda")


def test_bench_times_every_way_and_notes_what_cannot_run() -> None:
    def absent(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such backend\nand more lines")

    problem = problem_with(Wrong, peers=lambda device: {"sum": lambda x: x + x, "absent": absent})
    case = benching.case_of(problem, {"head_dim": 7})
    assert dict(case.shape) == {"rows": 3, "head_dim": 7}
    result = benching.bench(problem, case, "cpu", seconds=0.002, command=["python", "-m", "kernels"])
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["ModelNew", "reference", "sum", "absent"]
    assert rows["absent"] == BenchRow("absent", note="RuntimeError: no such backend")
    assert rows["ModelNew"].error == pytest.approx(1.0) and rows["sum"].error == 0
    assert all(rows[name].eager is not None for name in ("ModelNew", "reference", "sum"))
    assert result.flops == 21 and result.environment.command == "python -m kernels"
    assert result.environment.torch == str(torch.__version__) and result.environment.driver == ""
    assert json.loads(json_text([result]))[0]["rows"][0]["name"] == "ModelNew"


class TwoLaunches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1 + x


def test_bench_on_cuda_takes_every_time_with_the_judges_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)

    def synchronises(x: torch.Tensor) -> torch.Tensor:
        if gpu.graph is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return x + x

    seen: set[int] = set()

    def doubled(x: torch.Tensor) -> torch.Tensor:
        seen.add(x.data_ptr())
        return x + x

    problem = problem_with(TwoLaunches, peers=lambda device: {"sum": doubled, "synchronises": synchronises})
    with Launches(gpu, us=500.0):
        result = benching.bench(problem, benching.case_of(problem, {}), "cuda", seconds=0.02)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["ModelNew", "reference", "sum", "synchronises", *benching.BASELINES]
    assert len(seen) == 4, "calls go round four input sets"
    for name in ("ModelNew", "reference", "sum", *benching.BASELINES):
        row = rows[name]
        assert row.graph and row.graph_cold and row.eager and row.host and not row.eager_cold, name
        launches = 2 if name == "ModelNew" else 1
        assert row.graph.median_us == pytest.approx(launches * 500, rel=0.01)
        # The simulated cache doubles the first launch after a flush.
        assert row.graph_cold.median_us == pytest.approx((launches + 1) * 500, rel=0.01)
        assert row.graph_cold.calls == 1 and row.host.calls >= 19
        assert row.eager.median_us == pytest.approx(launches * 500, rel=0.01)
        assert row.host.median_us == pytest.approx(launches * gpu.HOST_CALL_US, rel=0.1)
        assert not row.note
    lost = rows["synchronises"]
    assert lost.note == "no graph: RuntimeError: operation not permitted when stream is capturing"
    assert lost.graph is None and lost.graph_cold is None
    assert lost.eager_cold and lost.eager_cold.median_us == pytest.approx(1000, rel=0.01)
    # 15 operations a call, by the graph with cold L2, or by the eager call where there is none.
    assert rows["sum"].tflops_from == "graph_cold" and lost.tflops_from == "eager_cold"
    assert rows["sum"].tflops == pytest.approx(15 / 1000e-6 / 1e12, rel=0.01)
    assert rows["x + 1, 10 floats"].tflops is None, "a baseline computes no problem"
    assert gpu.stream_now == "default"


def test_bench_on_cuda_leaves_graphs_out_for_calls_of_many_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)
    problem = problem_with(Doubled)
    with Launches(gpu, us=60_000.0):
        result = benching.bench(problem, benching.case_of(problem, {}), "cuda", seconds=0.1)
    row = result.rows[0]
    assert row.graph is None and row.note == "no graph: over 50 ms a call"
    assert row.eager_cold and row.eager and row.host and row.host.calls == 1


def test_bench_on_cuda_runs_a_slow_reference_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)

    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gpu.launch(3e6)
            return x * 2

    problem = problem_with(Doubled, model=Loop)
    with Launches(gpu, us=500.0):
        result = benching.bench(problem, benching.case_of(problem, {}), "cuda", seconds=0.02)
    row = next(row for row in result.rows if row.name == "reference")
    assert row.note == "too slow to repeat: one run"
    assert row.eager and row.eager.samples == 1 and row.graph is None and row.tflops_from == "eager"


def test_a_reference_that_would_take_minutes_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)
    lengths: list[int] = []

    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lengths.append(x.shape[1])
            return _doubled_in(gpu, x, 61e6)

    result = benching.bench(_table_problem(gpu, {}, model=Loop), LONG, "cuda", seconds=0.02)
    row = next(row for row in result.rows if row.name == "reference")
    assert row.left_out and row.note.startswith("about 61") and row.note.endswith("over 60 s")
    assert max(lengths) == 4096 and row.eager is None
    assert result.rows[0].graph_cold


def test_large_inputs_are_not_made_four_times() -> None:
    assert benching._set_count([torch.empty(1 << 10), 3]) == 4
    assert benching._set_count([torch.empty(8 << 20)]) == 2  # 32 MiB each
    assert benching._set_count([torch.empty(64 << 20, device="meta")]) == 1
    assert benching._set_count([torch.empty(0)]) == 4


def test_check_on_cuda_times_with_the_judges_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)
    with Launches(gpu, us=500.0):
        row = checking.run(checking.plan(problem_with(Doubled), "cuda", "sm_90a", 0)[0], seconds=0.02)
    assert row.passed, row.reason
    assert row.time and row.time.median_us == pytest.approx(500, rel=0.01)
    assert row.reference_time and row.reference_time.median_us == pytest.approx(500, rel=0.01)


@pytest.mark.parametrize("table", [False, True], ids=["shape", "table"])
def test_bench_times_each_variant_in_one_run(monkeypatch: pytest.MonkeyPatch, table: bool) -> None:
    """What selects a variant runs before each of its batches, and is not in its time."""
    gpu = stand_in(monkeypatch)
    state = {"variant": ""}

    class Either(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gpu.launch({"fast": 400.0, "slow": 1600.0}[state["variant"]])
            return x * 2

    def select(name: str) -> Callable[[], None]:
        def selected() -> None:
            gpu.host_us += 50_000.0
            state["variant"] = name

        return selected

    problem = problem_with(Either, peers=lambda device: {"sum": lambda x: x + x})
    variants = {name: select(name) for name in ("slow", "fast")}
    run = benching.bench_line if table else benching.bench
    with Launches(gpu, us=100.0):
        result = run(problem, problem.cases[1], "cuda", seconds=0.3, variants=variants)
    rows = {row.name: row for row in result.rows}
    assert list(rows)[:2] == ["ModelNew, slow", "ModelNew, fast"] and "ModelNew" not in rows
    for name, us in (("ModelNew, slow", 1700.0), ("ModelNew, fast", 500.0)):
        cold = rows[name].graph_cold
        # The simulated cache doubles the first launch after a flush.
        assert cold and cold.median_us == pytest.approx(2 * us - 100, rel=0.01), name
        if not table:
            eager, graph = rows[name].eager, rows[name].graph
            assert eager and eager.median_us == pytest.approx(us, rel=0.01)
            assert graph and graph.median_us == pytest.approx(us, rel=0.01)
    if table:
        assert result.lead_over_fastest and result.lead_over_fastest.ratio < 0.1, "of the first variant"


def test_bench_on_the_cpu_selects_each_variant_before_its_samples() -> None:
    state = {"variant": ""}
    ran: list[str] = []

    class Either(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ran.append(state["variant"])
            return x * 2

    variants = {name: partial(state.update, variant=name) for name in ("one", "two")}
    problem = problem_with(Either)
    result = benching.bench(problem, problem.cases[1], "cpu", seconds=0.002, variants=variants)
    assert [row.name for row in result.rows] == ["ModelNew, one", "ModelNew, two", "reference"]
    assert all(row.eager for row in result.rows)
    assert set(ran) == {"one", "two"}, "never another one's"


# -- torch's float32 matmul precision ----------------------------------------------------------


@pytest.fixture
def high() -> Iterator[None]:
    """Torch's float32 matmul precision below the default's."""
    before = precision.now()
    torch.set_float32_matmul_precision("high")
    yield
    before.restore()


@pytest.fixture
def same_setting() -> Iterator[None]:
    """What a check or bench leaves is what was set."""
    before = precision.now()
    yield
    after = precision.now()
    before.restore()
    assert after == before


def setting() -> str:
    return torch.backends.cuda.matmul.fp32_precision


def nothing() -> None:
    pass


def lowers() -> None:
    torch.set_float32_matmul_precision("high")


class Seen:
    """Models that double, and note under a name what is set when they are called."""

    def __init__(self) -> None:
        self.settings: dict[str, list[str]] = {}

    def __call__(self, name: str, x: torch.Tensor) -> torch.Tensor:
        self.settings.setdefault(name, []).append(setting())
        return x + x

    def model(
        self, name: str, *, made: Callable[[], None] = nothing, called: Callable[[], None] = nothing
    ) -> type[torch.nn.Module]:
        seen = self

        class Noted(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                made()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                out = seen(name, x)
                called()
                return out

        return Noted


def with_a_fast_variant(model_new: type, **changes: Any) -> Problem:
    exact = problem_with(Doubled).variants[0]
    exact = dataclasses.replace(exact, device="cuda", name="exact", serves=lambda request: True)
    return problem_with(
        model_new, variants=(dataclasses.replace(exact, name="less", fast=True), exact), **changes
    )


@pytest.mark.usefixtures("high")
def test_a_check_names_the_kernel_that_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = with_a_fast_variant(Doubled)
    (trial,) = checking.plan(problem, "cuda", "sm_90a", 0)
    (named,) = checking.plan(problem, "cuda", "sm_90a", 0, "exact")
    assert (trial.variant, named.variant) == ("less", "exact")
    assert checking.failed(trial, "").variant == "less"
    monkeypatch.setattr(
        torch._C,
        "_get_fp32_precision_getter",
        lambda backend, operation: {"cuda": "ieee"}.get(backend, "tf32"),
    )
    assert trial.variant == "exact", "of CUDA's products alone"


@pytest.mark.parametrize("lowered", [False, True], ids=["default", "high"])
def test_a_check_names_the_kernel_that_it_ran(
    lowered: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, same_setting: None
) -> None:
    if lowered:
        request.getfixturevalue("high")
    gpu, seen = stand_in(monkeypatch), Seen()
    problem = with_a_fast_variant(seen.model("new"), model=seen.model("reference"))
    with Launches(gpu, us=500.0):
        row = checking.run(checking.plan(problem, "cuda", "sm_90a", 0)[0], seconds=0.02)
    assert row.passed, row.reason
    assert row.variant == ("less" if lowered else "exact")
    assert {*seen.settings["new"]} == {"tf32" if lowered else "none"}
    assert {*seen.settings["reference"]} == {"ieee" if lowered else "none"}, "bounds are told from it"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("when", ["made", "called"])
@pytest.mark.parametrize("who", ["new", "reference"])
def test_a_check_keeps_each_ones_setting_to_itself(
    who: str, when: str, device: str, monkeypatch: pytest.MonkeyPatch, same_setting: None
) -> None:
    seen = Seen()
    made = {
        name: seen.model(name, **({when: lowers} if name == who else {})) for name in ("new", "reference")
    }
    problem = with_a_fast_variant(made["new"], model=made["reference"])
    (trial,) = checking.plan(problem, device, "sm_90a" if device == "cuda" else "x86-64", 0)
    if device == "cuda":
        with Launches(stand_in(monkeypatch), us=500.0):
            row = checking.run(trial, seconds=0.02)
        assert row.variant == ("less" if (who, when) == ("new", "made") else "exact")
    else:
        row = checking.run(trial, seconds=0.002)
    assert row.passed, row.reason
    (other,) = {"new", "reference"} - {who}
    assert {*seen.settings[other]} == {"none"}
    if when == "made":
        assert {*seen.settings[who]} == {"tf32"}
    assert setting() == "none"


@pytest.mark.parametrize("device", ["cpu", "cuda", "table"])
@pytest.mark.parametrize("when", ["made", "called"])
@pytest.mark.parametrize("who", ["ModelNew", "peer"])
def test_bench_keeps_each_routes_setting_to_itself(
    who: str, when: str, device: str, monkeypatch: pytest.MonkeyPatch, same_setting: None
) -> None:
    seen = Seen()
    mine = {when: lowers} if who == "ModelNew" else {}

    def peers(device: str) -> dict[str, Callable[..., Any]]:
        theirs = {when: lowers} if who == "peer" else {}
        return {"peer": seen.model("peer", **theirs)()}

    problem = problem_with(seen.model("ModelNew", **mine), model=seen.model("reference"), peers=peers)
    run = benching.bench_line if device == "table" else benching.bench
    if device == "cpu":
        result = run(problem, problem.cases[1], "cpu", seconds=0.002)
    else:
        with Launches(stand_in(monkeypatch), us=100.0):
            result = run(problem, problem.cases[1], "cuda", seconds=0.02)
    assert result.precision == ""
    assert all(row.accurate for row in result.rows if row.name in seen.settings)
    for name, settings in seen.settings.items():
        if name != who:
            assert {*settings} == {"none"}, name
    if when == "made":
        assert {*seen.settings[who]} == {"tf32"}
    assert setting() == "none"


@pytest.mark.usefixtures("high")
def test_bench_says_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    problem = problem_with(seen.model("ModelNew"), peers=lambda device: {"peer": seen.model("peer")()})
    with Launches(stand_in(monkeypatch), us=100.0):
        result = benching.bench(problem, problem.cases[1], "cuda", seconds=0.02)
    assert result.precision == "tf32" and as_json(result)["precision"] == "tf32"
    assert {name: {*settings} for name, settings in seen.settings.items()} == {
        "ModelNew": {"tf32"},
        "peer": {"tf32"},
    }


# -- a line of the table -----------------------------------------------------------------------


def _long_inputs(seqlen: int, head_dim: int, *, dtype: str = "float32", seed: int = 0) -> list[torch.Tensor]:
    return [torch.full((1, seqlen, head_dim), 1.0 + seed)]


class NeverCalled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the reference is a loop and must not be started")


def _table_problem(gpu: SimulatedGpu, peers: dict[str, Callable[..., Any]], **changes: Any) -> Problem:
    """Doubles [1, seqlen, 2]; its work, and the time of ``Quick``, grow with the square of the length."""

    class Quick(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _doubled_in(gpu, x, 10_000.0)

    changes = {
        "model": NeverCalled,
        "make_inputs": _long_inputs,
        "cases": (Case("default", "", {"seqlen": 4, "head_dim": 2}),),
        "flops": lambda shape: shape["seqlen"] ** 2,
        "oracle_rows": lambda rows, x: x.double()[:, rows] * 2,
        "peers": lambda device: peers,
        **changes,
    }
    return problem_with(Quick, **changes)


def _doubled_in(gpu: SimulatedGpu, x: torch.Tensor, us: float) -> torch.Tensor:
    """Twice ``x``, in ``us`` microseconds at length 16384 and in proportion to the work at others."""
    gpu.launch(us * (x.shape[1] / 16384) ** 2)
    return x * 2


LONG = Case("long", "", {"seqlen": 16384, "head_dim": 2})


def test_a_line_of_the_table_leaves_out_what_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)
    lengths: dict[str, list[int]] = {}

    def route(name: str, us: float) -> Callable[..., Any]:
        def call(x: torch.Tensor) -> torch.Tensor:
            lengths.setdefault(name, []).append(x.shape[1])
            return _doubled_in(gpu, x, us)

        return call

    def launches(x: torch.Tensor) -> torch.Tensor:
        """Half a millisecond before anything else: at length 256 it looks like two seconds at 16384."""
        lengths.setdefault("launches", []).append(x.shape[1])
        gpu.launch(500.0)
        return _doubled_in(gpu, x, 20_000.0)

    peers = {"fast": route("fast", 5_000.0), "slow": route("slow", 3e6), "launches": launches}
    problem = _table_problem(gpu, peers)
    result = benching.bench_line(problem, LONG, "cuda", seconds=0.05, limit_seconds=1.0)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["ModelNew", "fast", "slow", "launches"] and result.in_table
    slow = rows["slow"]
    assert slow.left_out and slow.tflops is None and slow.graph_cold is None and slow.error is None
    assert slow.note.startswith("about 3") and slow.note.endswith("s at length 4096), over 1 s")
    assert max(lengths["slow"]) == 4096, "never run at the length it would be too slow at"
    assert lengths["fast"][:3] == [256, 256, 16384]
    assert lengths["launches"][:5] == [256, 256, 1024, 1024, 16384], "overhead is told from work"
    for name, us in (("ModelNew", 10_000.0), ("fast", 5_000.0)):
        row = rows[name]
        # The simulated cache doubles the first launch after a flush.
        assert row.graph_cold and row.graph_cold.median_us == pytest.approx(2 * us, rel=0.01)
        assert (row.eager, row.graph, row.host, row.eager_cold) == (None, None, None, None)
        assert row.tflops_from == "graph_cold"
        assert row.tflops == pytest.approx(16384**2 / (2 * us * 1e-6) / 1e12, rel=0.01)
        assert not row.left_out and not row.note and row.accurate
    assert result.lead_over_accurate == result.lead_over_fastest
    assert result.lead_over_fastest and result.lead_over_fastest.peer == "fast"
    assert result.lead_over_fastest.ratio == pytest.approx(0.5, rel=0.01)


def test_a_line_of_the_table_says_why_a_route_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)

    def large(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 16384:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 34 GiB\nmore words")
        return _doubled_in(gpu, x, 10.0)

    def hungry(x: torch.Tensor) -> torch.Tensor:
        gpu.peak_bytes = 1_000 + (26_000_000 if x.shape[1] == 16384 else 0)
        return _doubled_in(gpu, x, 10.0)

    def other_dtype(x: torch.Tensor) -> torch.Tensor:
        raise TypeError("it does not take torch.float32; supported: torch.bfloat16")

    def synchronises(x: torch.Tensor) -> torch.Tensor:
        if gpu.graph is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return _doubled_in(gpu, x, 9_000.0)

    def halting(x: torch.Tensor) -> torch.Tensor:
        return _doubled_in(gpu, x, 3_000_000.0 if x.shape[1] == 16384 else 10.0)

    def lengthy(x: torch.Tensor) -> torch.Tensor:
        return _doubled_in(gpu, x, 60_000.0)

    peers = {
        "large": large,
        "hungry": hungry,
        "other dtype": other_dtype,
        "synchronises": synchronises,
        "halting": halting,
        "lengthy": lengthy,
    }
    result = benching.bench_line(_table_problem(gpu, peers), LONG, "cuda", seconds=0.05)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["ModelNew", *peers]
    assert rows["large"].note == "OutOfMemoryError: CUDA out of memory. Tried to allocate 34 GiB"
    assert rows["hungry"].note == "0.026 GB a call, over a quarter of the GPU's memory"
    assert rows["halting"].note == "3 s a call, over 1 s"
    assert all(rows[name].left_out and not rows[name].tflops_from for name in ("large", "hungry", "halting"))
    absent = rows["other dtype"]
    assert absent.note.startswith("TypeError: it does not take") and not absent.left_out
    eager = rows["synchronises"]
    assert eager.note.startswith("no graph: RuntimeError: operation not permitted")
    assert eager.tflops_from == "eager_cold" and eager.eager_cold
    assert eager.eager_cold.median_us == pytest.approx(18_000, rel=0.01)
    assert rows["lengthy"].tflops_from == "eager_cold" and not rows["lengthy"].note
    assert gpu.log.count("empty_cache") >= len(peers), "what one route took is there for the next"


def test_a_line_of_the_table_sets_accurate_peers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)
    peers = {
        "rough": lambda x: _doubled_in(gpu, x, 2_000.0) + 0.01,
        "exact": lambda x: _doubled_in(gpu, x, 20_000.0),
        "wrong in the last row": lambda x: torch.cat(
            [_doubled_in(gpu, x, 3_000.0)[:, :-1], torch.zeros_like(x[:, -1:])], dim=1
        ),
    }

    def whole(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the whole oracle takes too long here")

    monkeypatch.setattr(benching, "_WHOLE_FLOPS", 1e6)
    result = benching.bench_line(_table_problem(gpu, peers, oracle=whole), LONG, "cuda", seconds=0.05)
    rows = {row.name: row for row in result.rows}
    assert rows["rough"].error == pytest.approx(0.01, rel=1e-4) and rows["rough"].accurate is False
    assert rows["wrong in the last row"].error == 2.0 and not rows["wrong in the last row"].accurate
    assert rows["exact"].error == 0 and rows["exact"].accurate
    assert result.lead_over_accurate and result.lead_over_accurate.peer == "exact"
    assert result.lead_over_accurate.ratio == pytest.approx(2.0, rel=0.01)
    assert result.lead_over_fastest and result.lead_over_fastest.peer == "rough"
    assert result.lead_over_fastest.ratio == pytest.approx(0.2, rel=0.01)
    assert result.checked == (
        "47 of 16384 rows of every head and batch entry: the first and last 16, and 16 from the whole length"
    )


def test_the_rows_that_are_checked() -> None:
    assert benching._checked_rows(5) == [0, 1, 2, 3, 4]
    rows = benching._checked_rows(4096)
    assert rows[:16] == list(range(16)) and rows[-16:] == list(range(4080, 4096))
    assert {256, 2048, 3840} <= set(rows) and len(rows) == 47


def test_nothing_is_made_for_a_line_that_nothing_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = stand_in(monkeypatch)
    made: list[int] = []

    def inputs(seqlen: int, head_dim: int, *, dtype: str, seed: int = 0) -> list[torch.Tensor]:
        made.append(seqlen)
        return _long_inputs(seqlen, head_dim)

    problem = _table_problem(gpu, {}, make_inputs=inputs)
    result = benching.bench_line(problem, LONG, "cuda", limit_seconds=1e-6)
    assert made == [256] and result.checked == "nothing: no route was started"
    assert result.rows[0].left_out and result.lead_over_fastest is None


def test_a_line_of_the_table_on_the_cpu() -> None:
    slow: list[int] = []

    def waits(x: torch.Tensor) -> torch.Tensor:
        slow.append(x.shape[1])
        time.sleep(x.shape[1] * 1e-4)
        return x * 2

    problem = problem_with(
        Doubled,
        make_inputs=_long_inputs,
        flops=lambda shape: shape["seqlen"] ** 2,
        peers=lambda device: {"waits": waits},
    )
    case = Case("line", "", {"seqlen": 1024, "head_dim": 2})
    result = benching.bench_line(problem, case, "cpu", seconds=0.005, limit_seconds=0.2)
    ours, theirs = result.rows
    assert ours.eager and ours.tflops_from == "eager" and ours.accurate
    # 25.6 ms at length 256 make 0.41 s of it by the square.
    assert theirs.left_out and "at length 256" in theirs.note and set(slow) == {256}


@pytest.mark.parametrize("package", ["gqa_attn", "fp8_attn"])
def test_the_tables_shapes(package: str) -> None:
    from kernels.problem import find_problem

    problem = find_problem(package)
    cases = problem.bench_cases
    assert len({case.name for case in cases}) == len(cases) and all(case.why for case in cases)
    assert cases[0].shape["head_dim"] == 128 and cases[0].shape["batch"] == 1
    for case in cases:
        shape = case.shape
        length = shape.get("seqlen_q", shape.get("seqlen", 0))
        pairs = length * (length + 1) // 2
        assert problem.flops(shape) == 4 * shape["batch"] * shape["num_heads"] * shape["head_dim"] * pairs
        for arch in ("sm_80", "sm_90a"):
            request = checking.request_of(problem, case, "cuda", arch)
            assert any(v.device == "cuda" and v.serves(request) for v in problem.variants), case.name
    short = [case for case in cases if case.shape.get("seqlen_q", case.shape.get("seqlen", 0)) <= 512]
    assert len(short) == 12


@pytest.mark.parametrize(
    ("package", "dtype"), [("gqa_attn", "bfloat16"), ("fp8_attn", "int8"), ("fp8_attn", "float8_e4m3fn")]
)
def test_the_oracles_rows(package: str, dtype: str) -> None:
    from kernels.problem import find_problem

    problem = find_problem(package)
    assert problem.oracle_rows is not None
    inputs = problem.make_inputs(**checking.default_case(problem).shape, dtype=dtype)
    rows = [0, 5, 70]
    got = problem.oracle_rows(rows, *inputs)
    assert largest_error(got, problem.oracle(*inputs)[:, rows]) < 1e-12


def test_bench_shapes() -> None:
    problem = problem_with(
        Doubled, cases=(Case("default", "", {"seqlen_q": 8, "seqlen_k": 8, "head_dim": 4}, "float16"),)
    )
    assert benching.case_of(problem, {}).name == "default"
    longer = benching.case_of(problem, {"seqlen": 64, "head_dim": 32})
    assert dict(longer.shape) == {"seqlen_q": 64, "seqlen_k": 64, "head_dim": 32}
    assert longer.dtype == "float16"
    assert benching.case_of(problem, {}, "float64").dtype == "float64"
    with pytest.raises(
        ValueError, match="no 'heads' in its shape; it has: seqlen, seqlen_q, seqlen_k, head_dim"
    ):
        benching.case_of(problem, {"heads": 3})


def test_compiling_needs_a_peer_to_compile() -> None:
    problem = problem_with(Doubled)
    with pytest.raises(ValueError, match="'vectorised'"):
        benching.bench(problem, benching.case_of(problem, {}), "cpu", compiled=True)


@pytest.mark.parametrize("package", ["gqa_attn", "fp8_attn"])
def test_peers_compute_what_the_reference_does(package: str) -> None:
    """Each route that bench sets beside ModelNew gives the same result, so its time is worth comparing."""
    from kernels.problem import find_problem

    problem = find_problem(package)
    assert problem.peers is not None
    inputs = problem.make_inputs(
        **checking.default_case(problem).shape, dtype=checking.default_case(problem).dtype
    )
    oracle = problem.oracle(*inputs)
    peers = problem.peers("cpu")
    assert "vectorised" in peers
    for name, peer in peers.items():
        assert largest_error(peer(*inputs), oracle) < 1e-5, name


@pytest.mark.parametrize("package", ["gqa_attn", "fp8_attn"])
def test_peers_of_cuda_are_those_of_the_cpu_and_the_fused_backends(package: str) -> None:
    from kernels.problem import find_problem

    problem = find_problem(package)
    assert problem.peers is not None
    peers = problem.peers("cuda")
    assert set(problem.peers("cpu")) < set(peers)
    for backend in ("SDPA efficient", "SDPA cuDNN"):
        assert any(backend in name for name in peers), backend


def test_a_16_bit_backend_says_what_it_takes() -> None:
    from gqa_attn.inputs import make_inputs as gqa_inputs
    from gqa_attn.peers import peers

    inputs = gqa_inputs(1, 4, 4, 2, 1, 8)
    for name, peer in peers("cuda").items():
        if "cuDNN" in name or "flash" in name:
            with pytest.raises(TypeError, match=r"does not take torch.float32; supported: torch.float16"):
                peer(*inputs)


def test_the_bfloat16_route_of_fp8_attn_is_right_and_not_accurate() -> None:
    from fp8_attn import PROBLEM
    from fp8_attn.peers import sdpa_bfloat16

    inputs = PROBLEM.make_inputs(**PROBLEM.cases[0].shape)
    got, oracle = sdpa_bfloat16(*inputs), PROBLEM.oracle(*inputs)
    assert got.dtype == torch.float32
    assert 1e-4 < largest_error(got, oracle) < 3e-2


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch warns why a backend does not take an input
@pytest.mark.parametrize(("package", "dtype"), [("gqa_attn", "bfloat16"), ("fp8_attn", "int8")])
def test_peers_compute_what_the_reference_does_on_cuda(package: str, dtype: str) -> None:
    from kernels.problem import find_problem

    problem = find_problem(package)
    assert problem.peers is not None
    shape = {**checking.default_case(problem).shape, "head_dim": 128}
    inputs = problem.make_inputs(**shape, dtype=dtype, device="cuda")
    oracle = problem.oracle(*inputs)
    ran = []
    for name, peer in problem.peers("cuda").items():
        try:
            result = peer(*inputs)
        except RuntimeError as failure:
            print(f"{name}: {failure}")
            continue
        ran.append(name)
        assert largest_error(result, oracle) < 5e-2, name
    assert any("cuDNN" in name for name in ran) and any("efficient" in name for name in ran), ran


# -- processes and JSON ------------------------------------------------------------------------


def test_processes_report_their_own_seconds() -> None:
    code = "import os; print('noise'); print('{\"seconds\": ' + os.environ['TOOK'] + '}')"
    row = time_processes("it", [sys.executable, "-c", code], [{"TOOK": t} for t in ("3.0", "1.0", "2.0")])
    assert (row.seconds, row.samples, row.note) == (2.0, (3.0, 1.0, 2.0), "")


def test_a_failing_process_is_noted() -> None:
    row = time_processes("it", [sys.executable, "-c", "raise SystemExit('it broke')"], [{}, {}])
    assert math.isnan(row.seconds) and row.samples == ()
    assert "exit code 1" in row.note and "it broke" in row.note
    tool = "raise SystemExit('ToolError: no nvcc of CUDA 13\\n  fix: install one')"
    assert time_processes("it", [sys.executable, "-c", tool], [{}]).note == (
        "failed with exit code 1: ToolError: no nvcc of CUDA 13; fix: install one"
    )
    compiler = "import sys; sys.exit('x.cu:6: fatal error: a.h: No such file\\nninja: build stopped')"
    assert "fatal error: a.h" in time_processes("it", [sys.executable, "-c", compiler], [{}]).note


def test_json_holds_numbers_json_has_no_word_for() -> None:
    assert as_json({"a": (INF, NAN, 1.5), "b": Timing(1.0, 1.0, 1.0, 1, 1)}) == {
        "a": ["inf", "nan", 1.5],
        "b": {"median_us": 1.0, "low_us": 1.0, "high_us": 1.0, "samples": 1, "calls": 1},
    }
