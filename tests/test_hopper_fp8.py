"""The Hopper kernel of fp8_attn: where it is chosen, parity at its lengths, what it leaves to others."""

from __future__ import annotations

import math

import pytest
import torch
from attention_checks import assert_close, assert_parity, assert_same, cuda_kernels, requested_bytes
from test_hopper import hopper

from fp8_attn import PROBLEM
from fp8_attn.model_new import DTYPES, OPERATOR, ModelNew
from kernels.attention_variants import MIN_HOPPER_HEAD_DIM
from kernels.problem import Case, Request, Tolerance, choose_variant

make_inputs = PROBLEM.make_inputs


def request(dtype: str = "int8", head_dim: int = 128, arch: str = "sm_90a") -> Request:
    return Request("cuda", arch, dtype, head_dim, 1)


def case(name, *, batch=1, seqlen=257, heads=2, head_dim=128, dtype="int8", tolerance=None, **options):
    shape = {"batch": batch, "seqlen": seqlen, "num_heads": heads, "head_dim": head_dim}
    return Case(name, "", shape, dtype, options, tolerance or Tolerance())


CASES = (
    *(case(f"{dtype}", dtype=dtype) for dtype in DTYPES),
    *(case(f"int8_head_dim_{head_dim}", head_dim=head_dim) for head_dim in (33, 64, 72, 160, 256)),
    *(case(f"int8_head_dim_{head_dim}_long", head_dim=head_dim, seqlen=600) for head_dim in (1, 32)),
    case("float8_e4m3fn_head_dim_16_long", dtype="float8_e4m3fn", head_dim=16, seqlen=300),
    case("float8_e4m3fn_head_dim_64", dtype="float8_e4m3fn", head_dim=64),
    case("float8_e5m2_head_dim_256", dtype="float8_e5m2", head_dim=256),
    case("float32_normal", dtype="float32", values="normal"),
    case("bfloat16_normal", dtype="bfloat16", values="normal"),
    case("float16_normal", dtype="float16", values="normal", head_dim=64),
    case("batch_and_heads", batch=3, heads=5),
    case("shortest", seqlen=48),
    case("whole_tiles", seqlen=256),
    case("long", seqlen=2000, heads=1),
    case("more_rows_than_keys", seqlen=300, seqlen_k=100),
    case("more_keys_than_rows", seqlen=100, seqlen_k=300),
    case("transposed", layout="transposed"),
    case("every_other", layout="every_other"),
    case("offset", layout="offset"),
    case("extremes", values="extremes"),
    case("negative_scales", scales="negative", heads=4),
    case("negative_scales_extremes", scales="negative", values="extremes", heads=4),
    case("negative_scales_float8", scales="negative", dtype="float8_e4m3fn", heads=4),
    case("zero_scales", scales="zero", heads=4),
    case("denormal_scales", scales="denormal"),
    case("strided_scales", scales="strided"),
    case("huge", values="huge", dtype="float32"),
    case("large_logits", magnitude=100.0),
)


def test_is_chosen_on_hopper_alone():
    for dtype in DTYPES:
        assert choose_variant(PROBLEM, request(dtype)).name == "hopper"
    for other in (request(arch="sm_80"), request(head_dim=MIN_HOPPER_HEAD_DIM - 1)):
        assert choose_variant(PROBLEM, other).name == "portable"
        with pytest.raises(ValueError, match="does not serve"):
            choose_variant(PROBLEM, other, "hopper")


@hopper(pytest.mark.parametrize("case", CASES, ids=lambda case: case.name))
def test_parity(case):
    assert_parity(PROBLEM, case, "cuda")


@hopper(pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"))
def test_it_is_what_runs():
    inputs = make_inputs(1, 512, 4, 128, device="cuda")
    ModelNew()(*inputs)
    assert any("hopper" in name for name in cuda_kernels(lambda: ModelNew()(*inputs)))


@hopper(
    pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf]),
    pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"]),
)
def test_not_finite(which, bad):
    """One element that is not finite changes the rows that see it, as in the reference, and no other."""
    inputs = make_inputs(2, 400, 2, 128, dtype="float8_e5m2", device="cuda")
    inputs[which][1, 171, 1, 5] = bad
    got, want = ModelNew()(*inputs), PROBLEM.model()(*inputs)
    assert_close(got, want)
    assert torch.isfinite(got[0]).all() and torch.isfinite(got[1, :171]).all()


@hopper(pytest.mark.parametrize("which", [3, 4, 5], ids=["q_scale", "k_scale", "v_scale"]))
def test_a_scale_that_is_not_finite(which):
    inputs = make_inputs(1, 200, 3, 128, device="cuda")
    inputs[which][1] = math.nan
    assert_close(ModelNew()(*inputs), PROBLEM.model()(*inputs))


@hopper(pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float32"]))
def test_bitwise_on_repeat_and_in_a_batch(dtype):
    inputs = make_inputs(3, 700, 4, 128, dtype=dtype, device="cuda")
    out = ModelNew()(*inputs)
    for _ in range(3):
        assert_same(ModelNew()(*inputs), out)
    assert_same(ModelNew()(*(x[1:2] for x in inputs[:3]), *inputs[3:]), out[1:2])


@hopper()
def test_calls_in_a_row_on_new_content():
    """Each kernel starts while the one before it ends: none may read what is not written yet."""
    given = [make_inputs(2, 300, 4, 128, seed=seed, device="cuda") for seed in range(8)]
    want = [ModelNew()(*inputs) for inputs in given]
    torch.cuda.synchronize()
    operands = [torch.zeros_like(x) for x in given[0]]
    got = []
    for inputs in given:
        for place, x in zip(operands, inputs, strict=True):
            place.copy_(x)
        got.append(ModelNew()(*operands))
    for ours, theirs in zip(got, want, strict=True):
        assert_same(ours, theirs)


@hopper()
def test_graph():
    inputs = make_inputs(1, 300, 4, 128, device="cuda")
    want = ModelNew()(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ModelNew()(*inputs)
    out.zero_()
    graph.replay()
    assert_same(out, want)


@hopper(
    pytest.mark.parametrize(("dtype", "bytes_a_key"), [("int8", 3), ("float8_e4m3fn", 4), ("float32", 8)])
)
def test_workspace(dtype, bytes_a_key):
    """K as the tensor cores read it, V in fp16 parts, and little else."""
    seqlen, heads = 4096, 2
    inputs = make_inputs(1, seqlen, heads, 128, dtype=dtype, device="cuda")
    ModelNew()(*inputs)
    out, asked = requested_bytes(lambda: ModelNew()(*inputs))
    tiles = seqlen * heads * 128 * bytes_a_key
    assert tiles <= asked - out.nbytes <= 1.01 * tiles + 4096


@hopper()
def test_long_rows_are_as_near_as_short_ones():
    inputs = make_inputs(1, 8192, 2, 128, device="cuda")
    assert_close(ModelNew()(*inputs), PROBLEM.oracle(*inputs).float(), Tolerance(atol=2e-6, rtol=2e-6))


@hopper(pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float32"]))
def test_the_fast_form_rounds_weights(dtype):
    inputs = make_inputs(2, 1000, 2, 128, dtype=dtype, device="cuda")
    OPERATOR.use(request(dtype), "hopper_fast")
    try:
        error = (ModelNew()(*inputs) - PROBLEM.oracle(*inputs)).abs().max().item()
    finally:
        OPERATOR.use(request(dtype), "")
    assert 1e-5 < error < 1e-3
