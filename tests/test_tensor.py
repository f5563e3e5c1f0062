"""The tensor-core kernel for any GPU from sm_80 on, asked for by name: parity on every case it serves."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from attention_checks import (
    assert_close,
    assert_parity,
    assert_same,
    cuda_kernels,
    request_of,
    requested_bytes,
)

from fp8_attn import PROBLEM as FP8_ATTN
from fp8_attn.model_new import OPERATOR as FP8_OPERATOR
from gqa_attn import PROBLEM as GQA_ATTN
from gqa_attn.inputs import BY_DTYPE
from gqa_attn.model_new import OPERATOR as GQA_OPERATOR
from kernels.jit.operator import Operator
from kernels.problem import Case, Problem, Request, choose_variant

OPERATORS = {"gqa_attn": GQA_OPERATOR, "fp8_attn": FP8_OPERATOR}
PROBLEMS = {"gqa_attn": GQA_ATTN, "fp8_attn": FP8_ATTN}


def serves(problem: Problem, case: Case) -> bool:
    """Whether the kernel takes this case; its launcher gives some layouts to others."""
    variant = next(each for each in problem.variants if each.name == "tensor")
    heads, kv_heads = case.shape["num_heads"], case.shape.get("num_kv_heads", case.shape["num_heads"])
    group_size = heads // kv_heads if kv_heads else 1
    return variant.serves(Request("cuda", "sm_80", case.dtype, case.shape["head_dim"], group_size))


CASES = [
    pytest.param(name, case, id=f"{name}-{case.name}")
    for name, problem in PROBLEMS.items()
    for case in problem.cases
    if serves(problem, case)
]
# Beyond the length up to which many warps share a row: batch, length, heads, dtype.
LONG = [
    ("gqa_attn", (1, 700, 4, 1), "float32"),
    ("gqa_attn", (1, 700, 4, 2), "bfloat16"),
    ("gqa_attn", (1, 300, 2, 1), "float16"),
    ("fp8_attn", (1, 700, 3), "int8"),
    ("fp8_attn", (1, 400, 2), "float8_e4m3fn"),
]


needs_sm_80 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0), reason="needs an sm_80 GPU"
)


@pytest.fixture
def by_name() -> Iterator[list[tuple[Operator, Request]]]:
    """What the test asked for by name; taken back afterwards."""
    used: list[tuple[Operator, Request]] = []
    yield used
    for operator, request in used:
        operator.use(request, "")


def use(used: list[tuple[Operator, Request]], name: str, case: Case) -> None:
    request = request_of(case, "cuda")
    OPERATORS[name].use(request, "tensor")
    used.append((OPERATORS[name], request))


def long_case(name: str, shape: tuple[int, ...], dtype: str, head_dim: int) -> Case:
    batch, seqlen, num_heads, *kv_heads = shape
    words = {"batch": batch, "num_heads": num_heads, "head_dim": head_dim}
    if name == "fp8_attn":
        return Case("long", "", {**words, "seqlen": seqlen}, dtype)
    words |= {"seqlen_q": seqlen, "seqlen_k": seqlen, "num_kv_heads": kv_heads[0]}
    return Case("long", "", words, dtype, {}, BY_DTYPE[dtype])


def test_it_is_never_chosen_by_itself() -> None:
    for problem, dtype in ((GQA_ATTN, "float32"), (FP8_ATTN, "int8")):
        for arch in ("sm_80", "sm_120"):
            request = Request("cuda", arch, dtype, 64, 1)
            assert choose_variant(problem, request).name == "portable"
            assert choose_variant(problem, request, "tensor").name == "tensor"
        for other in (Request("cuda", "sm_75", dtype, 64, 1), Request("cuda", "sm_80", dtype, 63, 1)):
            with pytest.raises(ValueError, match="does not serve"):
                choose_variant(problem, other, "tensor")


@needs_sm_80
@pytest.mark.gpu
@pytest.mark.parametrize(("name", "case"), CASES)
def test_parity(name: str, case: Case, by_name) -> None:
    use(by_name, name, case)
    assert_parity(PROBLEMS[name], case, "cuda")


@needs_sm_80
@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("name", "shape", "dtype"), LONG)
def test_long(name: str, shape: tuple[int, ...], dtype: str, head_dim: int, by_name) -> None:
    case = long_case(name, shape, dtype, head_dim)
    use(by_name, name, case)
    assert_parity(PROBLEMS[name], case, "cuda")


@needs_sm_80
@pytest.mark.gpu
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize("seqlen", [200, 400])
def test_not_finite(seqlen: int, which: int, bad: float, by_name) -> None:
    """One element that is not finite changes the rows that see it, as in the reference, and no other."""
    case = long_case("gqa_attn", (2, seqlen, 4, 2), "float32", 128)
    use(by_name, "gqa_attn", case)
    inputs = GQA_ATTN.make_inputs(**case.shape, device="cuda")
    inputs[which][1, 171, 1, 5] = bad
    got = GQA_ATTN.model_new()(*inputs)
    assert_close(got, GQA_ATTN.model()(*inputs))
    assert torch.isfinite(got[0]).all() and torch.isfinite(got[1, :171]).all()


@needs_sm_80
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*rofiler")
@pytest.mark.parametrize("seqlen", [200, 400])
def test_one_launch_no_workspace_and_bitwise(seqlen: int, by_name) -> None:
    case = long_case("gqa_attn", (3, seqlen, 4, 1), "float32", 128)
    use(by_name, "gqa_attn", case)
    q, k, v = GQA_ATTN.make_inputs(**case.shape, device="cuda")
    model = GQA_ATTN.model_new()
    want = model(q, k, v)
    kernels = cuda_kernels(lambda: model(q, k, v))
    assert len(kernels) == 1 and "tensor_attention" in kernels[0], kernels
    out, peak = requested_bytes(lambda: model(q, k, v))
    assert peak == out.nbytes
    assert_same(out, want)
    assert_same(model(q[1:2], k[1:2], v[1:2]), want[1:2])
