"""Which variant serves which request of the attention packages, and what the operators are told of it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fp8_attn import PROBLEM as FP8_ATTN
from gqa_attn import PROBLEM as GQA_ATTN
from kernels import problem as problem_module
from kernels.device import cuda_arch_name
from kernels.jit.spec import kernel_spec
from kernels.problem import NARROW_HEAD_DIM, SHORT_STEPS, Problem, Request, choose_variant, is_long

PROBLEMS = [GQA_ATTN, FP8_ATTN]
CAPABILITIES = ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0")
DTYPES = {
    "gqa_attn": ("float32", "float64", "float16", "bfloat16"),
    "fp8_attn": ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32"),
}
HEAD_DIMS = (1, 31, 32, 33, 64, 100, 128, 255, 256)


@pytest.fixture(params=PROBLEMS, ids=lambda problem: problem.name)
def problem(request: pytest.FixtureRequest) -> Problem:
    return request.param


def cuda_requests(problem: Problem) -> Iterator[tuple[str, Request]]:
    """Each compute capability with requests for it."""
    for capability in CAPABILITIES:
        for dtype in DTYPES[problem.name]:
            for head_dim in HEAD_DIMS:
                yield capability, Request("cuda", cuda_arch_name(capability), dtype, head_dim, 1)


def test_hopper_serves_hopper_alone(problem: Problem) -> None:
    for capability, request in cuda_requests(problem):
        on_hopper = capability == "9.0" and request.head_dim >= 33 and request.dtype != "float64"
        assert choose_variant(problem, request).name == ("hopper" if on_hopper else "portable"), request


def test_long_sequences_of_narrow_rows_are_hoppers_too(problem: Problem) -> None:
    has_long_form = importlib.import_module(f"{problem.name}.model_new").has_long_form
    for capability, request in cuda_requests(problem):
        if request.head_dim > NARROW_HEAD_DIM:
            assert not has_long_form(capability, request.dtype, request.head_dim), request
            continue
        long = replace(request, long=True)
        apart = choose_variant(problem, long) != choose_variant(problem, request)
        assert has_long_form(capability, request.dtype, request.head_dim) is apart, request
        assert apart is (capability == "9.0" and request.dtype != "float64"), request
        assert choose_variant(problem, long, fast=True) == choose_variant(problem, long)


def test_lengths_are_told_from_shapes() -> None:
    for shape, long in (
        ({"seqlen": 129}, True),
        ({"seqlen": 128}, False),
        ({"seqlen_q": 300, "seqlen_k": 128, "batch": 512}, False),
        ({"seqlen_q": 300, "seqlen_k": 129, "head_dim": 32}, True),
        ({"batch": 512}, False),
    ):
        assert is_long("cuda", 32, shape) is long
        assert not is_long("cuda", 33, shape) and not is_long("cpu", 32, shape)


def test_the_binding_has_the_same_bounds() -> None:
    text = (Path(problem_module.__file__).parent / "bindings" / "attention.h").read_text()
    assert f"kNarrowHeadDim = {NARROW_HEAD_DIM};" in text and f"kShortSteps = {SHORT_STEPS};" in text


def test_the_fast_form_is_for_requests_that_allow_it(problem: Problem) -> None:
    for capability, request in cuda_requests(problem):
        dtypes = ("float32",) if problem.name == "gqa_attn" else DTYPES["fp8_attn"]
        there = capability == "9.0" and request.head_dim >= 33 and request.dtype in dtypes
        allowed = choose_variant(problem, request, fast=True)
        assert (allowed.name == "hopper_fast") is there, request
        assert there or allowed == choose_variant(problem, request)
        for name in ("portable", "hopper_fast") if there else ("portable",):
            assert choose_variant(problem, request, name, fast=True).name == name, "a name comes first"


def test_the_operator_knows_what_has_a_fast_form(problem: Problem) -> None:
    """It is told in model_new.py, which a first call imports, and variants.py decides."""
    has_fast_form = importlib.import_module(f"{problem.name}.model_new").has_fast_form
    for capability, request in cuda_requests(problem):
        fast = choose_variant(problem, request, fast=True).fast
        assert has_fast_form(capability, request.dtype, request.head_dim) is fast, request


def test_default_requests_have_no_fast_form(problem: Problem) -> None:
    for capability in CAPABILITIES:
        request = problem.default_request("cuda", cuda_arch_name(capability))
        assert kernel_spec(problem, request, fast=True) == kernel_spec(problem, request)


def test_the_cpu_kernel_is_one_for_all_precisions(problem: Problem) -> None:
    for dtype in DTYPES[problem.name]:
        request = Request("cpu", "x86-64-v3", dtype, 128, 1)
        assert kernel_spec(problem, request, fast=True) == kernel_spec(problem, request)
