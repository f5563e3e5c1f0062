"""Calls past torch's dispatcher: they give what the operator gives, and leave to it all that is unusual."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from attention_checks import assert_same
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.jit import direct_calls
from kernels.jit.operator import Operator
from kernels.problem import Problem, find_problem


@pytest.fixture(params=["gqa_attn", "fp8_attn"])
def problem(request: pytest.FixtureRequest) -> Problem:
    return find_problem(request.param)


@pytest.fixture
def inputs(problem: Problem, device: str) -> list[Tensor]:
    """Inputs whose kernel was called before, with direct calls found."""
    made = make(problem, device)
    for _ in range(2):
        problem.model_new()(*made)
    return made


def make(problem: Problem, device: str, head_dim: int = 32) -> list[Tensor]:
    if problem.name == "gqa_attn":
        shape = {"seqlen_q": 20, "seqlen_k": 20, "num_heads": 4, "num_kv_heads": 2}
    else:
        shape = {"seqlen": 20, "num_heads": 4}
    return problem.make_inputs(batch=2, **shape, head_dim=head_dim, dtype="float32", device=device)


def test_they_give_what_the_operator_gives(inputs: list[Tensor], operator: Operator) -> None:
    for direct, forward in (
        (operator.direct, operator.forward),
        (operator.fast_direct, operator.fast_forward),
    ):
        want = forward(*inputs)
        got = direct(*inputs)
        assert_same(got, want)
        assert type(got) is Tensor and got.is_contiguous() and not got.requires_grad
        assert got.device == want.device and got._version == want._version


def test_layouts_without_a_copy(inputs: list[Tensor], operator: Operator) -> None:
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3]] + inputs[3:]
    assert_same(operator.direct(*moved), operator.forward(*moved))


def test_without_gradients_and_in_inference_mode(inputs: list[Tensor], operator: Operator) -> None:
    want = operator.forward(*inputs)
    for x in inputs:
        x.requires_grad_()
    with torch.no_grad():
        assert_same(operator.direct(*inputs), want)
    with torch.inference_mode():
        assert_same(operator.direct(*inputs), want)
        made_inside = [x.clone() for x in inputs]
        assert operator.direct(*made_inside).is_inference()
    out = operator.direct(*made_inside)
    assert_same(out, want)
    assert not out.is_inference()


def test_a_model_makes_them(
    inputs: list[Tensor], operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = operator.forward(*inputs)
    for other in ("forward_now", "fast_forward_now", "forward", "fast_forward"):
        monkeypatch.setattr(operator, other, lambda *x: pytest.fail("the operator was called"))
    assert_same(find_problem(operator.name).model_new()(*inputs), want)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "dispatch mode": _Dispatch,
    "function mode": _Function,
    "default device": lambda: torch.device("cpu"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "fake tensors": lambda: torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_sees_the_operator(inputs: list[Tensor], operator: Operator, mode: str) -> None:
    with MODES[mode]():
        assert operator.direct(*inputs) is None
    assert operator.direct(*inputs) is not None


def test_a_mode_is_a_matter_of_its_thread(inputs: list[Tensor], operator: Operator) -> None:
    results: list[Tensor | None] = []

    def work(mode: AbstractContextManager[Any]) -> None:
        with mode:
            results.append(operator.direct(*inputs))

    with _Dispatch():
        threads = [threading.Thread(target=work, args=(mode,)) for mode in (nullcontext(), _Dispatch())]
        for thread in threads:
            thread.start()
            thread.join()
    assert results[0] is not None and results[1] is None


def test_a_profiler_sees_the_operator(inputs: list[Tensor], problem: Problem, operator: Operator) -> None:
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], acc_events=True) as profile:
        assert operator.direct(*inputs) is None
        problem.model_new()(*inputs)
    assert f"kernelwright::{problem.name}_forward" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("transform", ["vmap", "grad", "functionalize"])
def test_a_transform_sees_the_operator(inputs: list[Tensor], operator: Operator, transform: str) -> None:
    seen: list[Any] = []

    def call(q: Tensor) -> Tensor:
        seen.append(operator.direct(q, *inputs[1:]))
        return q.sum()

    getattr(torch.func, transform)(call)(inputs[0].float())
    assert seen == [None]


class _Plain(Tensor):
    pass


TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "subclass": lambda x: x.as_subclass(_Plain),
    "parameter": nn.Parameter,
    "gradient": lambda x: x.clone().requires_grad_(),
    "negated view": lambda x: torch._neg_view(x),
    "functional": torch._to_functional_tensor,
    "zero": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype, device=x.device),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "half as many": lambda x: x[: x.shape[0] // 2],
    "another dtype": lambda x: x.double(),
    "none": lambda x: None,
    "number": lambda x: 1.0,
}


@pytest.mark.parametrize("what", TENSORS)
def test_unusual_arguments_are_left_to_the_operator(
    inputs: list[Tensor], operator: Operator, what: str
) -> None:
    for i in range(len(inputs)):
        arguments = list(inputs)
        arguments[i] = TENSORS[what](inputs[i])
        assert operator.direct(*arguments) is None, i
    assert operator.direct(*inputs[1:]) is None and operator.direct() is None


def test_a_kernel_that_nobody_called_is_left_to_the_operator(
    problem: Problem, operator: Operator, device: str
) -> None:
    """It is built there, with the words for who waits."""
    before = {asked: list(numbers) for asked, numbers in operator.resolver._resolved.items()}
    assert operator.direct(*make(problem, device, head_dim=199)) is None
    assert operator.resolver._resolved == before


def test_nothing_is_kept(inputs: list[Tensor], operator: Operator) -> None:
    def counts() -> list[int]:
        return [sys.getrefcount(x) for x in inputs]

    before, nones = counts(), sys.getrefcount(None)
    outs = [weakref.ref(operator.direct(*inputs)) for _ in range(100)]
    assert all(out() is None for out in outs)
    for _ in range(10_000):
        operator.direct(None)
    assert counts() == before
    assert abs(sys.getrefcount(None) - nones) < 5_000, "others use it too"


@pytest.mark.parametrize(
    "missing", ["_keys", "_dispatch_tls_local_include_set", "a symbol", "an old binding"]
)
def test_without_what_they_rest_on_there_are_none(
    operator: Operator, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a torch that keeps things elsewhere every call goes through the operator."""
    library: Any = operator._binding
    if missing == "_keys":
        monkeypatch.setattr(direct_calls, "_keys", lambda tensor: 0x5EED)
    elif missing == "_dispatch_tls_local_include_set":
        monkeypatch.delattr(torch._C, missing)
    elif missing == "a symbol":
        monkeypatch.setattr(library, "binding_direct_is_possible", lambda: False, raising=False)
    else:
        library = object()
    assert direct_calls.connect(library, None) == (direct_calls.no_direct_call,) * 2


@pytest.mark.parametrize("version", ["2.10.1", "2.15.0a0+gitabcdef", "3.0.0"])
def test_another_torch(operator: Operator, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory was not looked at when this was written."""
    monkeypatch.setattr(torch, "__version__", version)
    assert operator._binding is not None
    assert direct_calls.connect(operator._binding, None) == (direct_calls.no_direct_call,) * 2


def test_they_can_be_turned_off(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_DIRECT_CALLS", "0")
    assert operator._binding is not None
    assert direct_calls.connect(operator._binding, None) == (direct_calls.no_direct_call,) * 2


@pytest.mark.parametrize("mode", [*MODES, "inference"])
def test_what_is_on_at_the_first_call_does_not_matter(
    inputs: list[Tensor], operator: Operator, mode: str
) -> None:
    library = operator._binding
    assert library is not None
    with torch.inference_mode() if mode == "inference" else MODES[mode]():
        direct, fast_direct = direct_calls.connect(library, operator._cuda_index)
    assert direct(*inputs) is not None and fast_direct is not direct_calls.no_direct_call


def test_a_model_without_them_calls_the_operator(
    inputs: list[Tensor], problem: Problem, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = operator.direct(*inputs)
    monkeypatch.setattr(operator, "direct", direct_calls.no_direct_call)
    monkeypatch.setattr(operator, "fast_direct", direct_calls.no_direct_call)
    assert_same(problem.model_new()(*inputs), want)


def test_python_runs_meanwhile(inputs: list[Tensor], problem: Problem, operator: Operator) -> None:
    """The interpreter's lock is not held while the kernel is launched, or runs on the CPU."""
    long = [x.repeat(1, 100, 1, 1) for x in inputs[:3]] + inputs[3:]
    if long[0].is_cuda:
        pytest.skip("a launch is over at once")
    ticks, done = 0, threading.Event()

    def call() -> None:
        operator.direct(*long)
        done.set()

    thread = threading.Thread(target=call)
    thread.start()
    while not done.wait(1e-4):
        ticks += 1
    thread.join()
    assert ticks > 1
