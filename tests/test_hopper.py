"""The Hopper kernel of gqa_attn: where it is chosen, parity at its lengths, what it leaves to others."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from attention_checks import assert_close, assert_parity, assert_same, cuda_kernels, requested_bytes

from gqa_attn import PROBLEM
from gqa_attn.inputs import BY_DTYPE, make_inputs
from gqa_attn.model_new import OPERATOR, ModelNew
from kernels.attention import attention_forward
from kernels.attention_variants import MIN_HOPPER_HEAD_DIM
from kernels.jit.operator import use_variant
from kernels.problem import Case, Request, Tolerance, choose_variant


def on_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


needs_hopper = [pytest.mark.gpu, pytest.mark.skipif(not on_hopper(), reason="needs an sm_90 GPU")]


def hopper(*marks):
    """Marks a test that runs the kernel."""

    def mark(test):
        for one in (*needs_hopper, *marks):
            test = one(test)
        return test

    return mark


def case(
    name,
    *,
    seqlen=257,
    seqlen_k=None,
    heads=(4, 1),
    head_dim=128,
    dtype="float32",
    batch=1,
    tolerance=None,
    **options,
):
    shape = {
        "batch": batch,
        "seqlen_q": seqlen,
        "seqlen_k": seqlen if seqlen_k is None else seqlen_k,
        "num_heads": heads[0],
        "num_kv_heads": heads[1],
        "head_dim": head_dim,
    }
    return Case(name, "", shape, dtype, options, tolerance or BY_DTYPE[dtype])


# The reference's own error is the yardstick, and one near tie, or one value of five times the usual size,
# carries it: seen at 2.4 times the reference's here, and at 0.4 times for other lengths.
ORACLE_ONLY = Tolerance(atol=math.inf, rtol=0.0, oracle_ratio=4.0)

CASES = (
    # Tiles: BLOCK_N is 128, 64 and 32 keys, a warpgroup has 64 packed rows.
    case("head_dim_128"),
    case("head_dim_64_two_kv_heads", head_dim=64, heads=(8, 2), batch=2),
    case("no_group", heads=(2, 2)),
    case("group_of_3", heads=(3, 1), head_dim=80),
    case("group_of_16", heads=(16, 1), head_dim=72),
    case("group_over_a_tile", heads=(130, 1), seqlen=70),
    case("head_dim_33", head_dim=33, heads=(2, 1)),
    case("head_dim_32", head_dim=32, heads=(8, 2), batch=2),
    case("head_dim_32_long", head_dim=32, seqlen=1500),
    case("head_dim_1", head_dim=1, heads=(2, 2)),
    case("bfloat16_head_dim_31", dtype="bfloat16", head_dim=31, heads=(2, 1)),
    case("float16_head_dim_16", dtype="float16", head_dim=16, seqlen=300, seqlen_k=260),
    case("head_dim_160", head_dim=160, heads=(2, 1)),
    case("head_dim_256", head_dim=256, heads=(2, 2)),
    case("shortest", seqlen=48, head_dim=160),
    case("short", seqlen=65),
    case("before_the_short", seqlen=64),
    case("whole_tiles", seqlen=256),
    case("more_rows_than_keys", seqlen=300, seqlen_k=100),
    case("one_key", seqlen=100, seqlen_k=1),
    case("more_keys_than_rows", seqlen=100, seqlen_k=300),
    case("float16", dtype="float16"),
    case("float16_head_dim_63", dtype="float16", head_dim=63, heads=(7, 1)),
    case("bfloat16", dtype="bfloat16"),
    case("bfloat16_head_dim_256", dtype="bfloat16", head_dim=256, heads=(2, 1)),
    case("transposed", layout="transposed"),
    case("every_other", layout="every_other"),
    case("offset", layout="offset"),
    case("packed", layout="packed"),
    case("logits_in_the_thousands", magnitude=30.0, v_magnitude=30.0, tolerance=ORACLE_ONLY),
    case("logits_1e6", values="logits", magnitude=1e6, tolerance=ORACLE_ONLY),
    case("far_below_zero", values="constant", magnitude=-1e4, head_dim=64),
    case("small_values", magnitude=1e-4, v_magnitude=1e-4),
    case("large_v", v_magnitude=1e6, tolerance=ORACLE_ONLY),
    case("out_of_range", magnitude=1e-20),
)


def test_is_chosen_on_hopper_alone():
    def chosen(arch: str, dtype: str, head_dim: int) -> str:
        request = Request("cuda", arch, dtype, head_dim, 4)
        return choose_variant(PROBLEM, request).name

    for dtype in ("float32", "float16", "bfloat16"):
        assert chosen("sm_90a", dtype, 128) == "hopper"
        assert chosen("sm_80", dtype, 128) == "portable"
        assert chosen("sm_120", dtype, 128) == "portable"
    assert chosen("sm_90a", "float64", 128) == "portable"
    assert chosen("sm_90a", "float32", MIN_HOPPER_HEAD_DIM) == "hopper"
    assert chosen("sm_90a", "float32", MIN_HOPPER_HEAD_DIM - 1) == "portable"
    long = Request("cuda", "sm_90a", "float32", MIN_HOPPER_HEAD_DIM - 1, 4, long=True)
    assert choose_variant(PROBLEM, long).name == "hopper"
    assert choose_variant(PROBLEM, replace(long, arch="sm_80")).name == "portable"


@hopper(pytest.mark.parametrize("case", CASES, ids=lambda case: case.name))
def test_parity(case):
    assert_parity(PROBLEM, case, "cuda")


@hopper(
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"),
    pytest.mark.parametrize(
        ("seqlen", "head_dim", "dtype", "kernel"),
        [
            (64, 128, "float32", "tensor"),
            (65, 128, "float32", "hopper"),
            (96, 128, "bfloat16", "tensor"),
            (97, 128, "bfloat16", "hopper"),
            (47, 160, "float32", "portable"),
            (48, 160, "float32", "hopper"),
            (96, 64, "float32", "short"),
            (47, 33, "float32", "portable"),
            (80, 32, "float32", "short"),
            (128, 32, "float32", "short"),
            (129, 32, "float32", "hopper"),
        ],
    ),
)
def test_which_kernel_of_the_library_serves(seqlen, head_dim, dtype, kernel):
    """By length and head_dim: one launch where three would take longer than the work."""
    inputs = make_inputs(2, seqlen, seqlen, 4, 2, head_dim, dtype=dtype, device="cuda")
    ModelNew()(*inputs)
    names = cuda_kernels(lambda: ModelNew()(*inputs))
    assert any(f"{kernel}_attention_kernel" in name for name in names)
    assert len(names) == (3 if kernel == "hopper" else 1)


@hopper(pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"))
def test_it_is_what_runs():
    inputs = make_inputs(1, 512, 512, 4, 1, 128, device="cuda")
    ModelNew()(*inputs)
    assert any("hopper" in name for name in cuda_kernels(lambda: ModelNew()(*inputs)))


@hopper(pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"))
def test_narrow_rows_have_a_library_for_long_sequences():
    """Each is built when it is first called for, and neither takes the place of the other."""
    model = ModelNew()
    for seqlen, there in ((300, True), (100, False), (300, True)):
        inputs = make_inputs(1, seqlen, seqlen, 6, 2, 24, device="cuda")
        model(*inputs)
        assert any("hopper" in kernel for kernel in cuda_kernels(partial(model, *inputs))) is there


@hopper(pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"))
def test_a_variant_by_name_is_what_runs():
    """Before and after a first call, and back; what a graph holds stays."""
    inputs = make_inputs(1, 512, 512, 4, 1, 128, device="cuda")
    request = Request("cuda", "sm_90a", "float32", 128, 4)
    model = ModelNew()
    want = model(*inputs)
    graph = torch.cuda.CUDAGraph()
    try:
        for name, there in (("portable", False), ("hopper", True), ("portable", False)):
            use_variant("gqa_attn", request, name)
            assert_close(model(*inputs), want)
            assert any("hopper" in kernel for kernel in cuda_kernels(lambda: model(*inputs))) is there
        with torch.cuda.graph(graph):
            out = model(*inputs)
    finally:
        use_variant("gqa_attn", request, "")
    assert any("hopper" in kernel for kernel in cuda_kernels(lambda: model(*inputs)))
    out.zero_()
    graph.replay()
    assert_close(out, want)


@hopper(pytest.mark.parametrize("head_dim", [32, 64, 128, 256]))
def test_values_with_an_offset(head_dim):
    """Sums that stayed inside the tensor cores would drift here."""
    q, k, v = make_inputs(1, 3000, 3000, 2, 1, head_dim, device="cuda")
    v += 1000.0
    assert_close(ModelNew()(q, k, v), PROBLEM.oracle(q, k, v).float())


@hopper(
    pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf]),
    pytest.mark.parametrize("dtype", ["float32", "bfloat16"]),
    pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"]),
)
def test_not_finite(which, dtype, bad):
    """One element that is not finite changes the rows that see it, as in the reference, and no other."""
    inputs = make_inputs(2, 400, 400, 4, 2, 128, dtype=dtype, device="cuda")
    inputs[which][1, 171, 1, 5] = bad
    got, want = ModelNew()(*inputs), attention_forward(*inputs)
    assert_close(got, want, BY_DTYPE[dtype])
    assert torch.isfinite(got[0]).all() and torch.isfinite(got[1, :171]).all()


@hopper(pytest.mark.parametrize("which", [1, 2], ids=["k", "v"]))
def test_magnitudes_far_apart(which):
    """Rows whose magnitudes no common scale can hold are computed another way."""
    inputs = make_inputs(1, 400, 400, 4, 1, 128, device="cuda")
    inputs[which][:, 100] *= 1e-7
    assert_close(ModelNew()(*inputs), PROBLEM.oracle(*inputs).float())


@hopper(pytest.mark.parametrize("dtype", ["float32", "bfloat16"]))
def test_bitwise_on_repeat_and_in_a_batch(dtype):
    q, k, v = make_inputs(3, 700, 700, 8, 2, 128, dtype=dtype, device="cuda")
    out = ModelNew()(q, k, v)
    for _ in range(3):
        assert_same(ModelNew()(q, k, v), out)
    assert_same(ModelNew()(q[1:2], k[1:2], v[1:2]), out[1:2])


@hopper()
def test_graph():
    q, k, v = make_inputs(1, 300, 300, 4, 1, 128, device="cuda")
    want = ModelNew()(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ModelNew()(q, k, v)
    out.zero_()
    graph.replay()
    assert_same(out, want)


@hopper(pytest.mark.parametrize(("dtype", "parts"), [("float32", 2), ("bfloat16", 1)]))
def test_workspace(dtype, parts):
    """Two fp16 tiles of as many parts for each key, and little else."""
    seqlen, kv_heads = 4096, 2
    inputs = make_inputs(1, seqlen, seqlen, 4, kv_heads, 128, dtype=dtype, device="cuda")
    ModelNew()(*inputs)
    out, asked = requested_bytes(lambda: ModelNew()(*inputs))
    tiles = seqlen * kv_heads * 2 * parts * 128 * 2
    assert tiles <= asked - out.nbytes <= 1.01 * tiles + 4096


@hopper()
def test_long_rows_are_as_near_as_short_ones():
    q, k, v = make_inputs(1, 8192, 8192, 2, 1, 128, device="cuda")
    assert_close(ModelNew()(q, k, v), PROBLEM.oracle(q, k, v).float(), Tolerance(atol=2e-6, rtol=2e-6))


@hopper(pytest.mark.parametrize("head_dim", [64, 128, 256]))
def test_the_fast_form_is_as_near_as_half_precision(head_dim):
    asked = Request("cuda", "sm_90a", "float32", head_dim, 2)
    inputs = make_inputs(2, 1000, 1000, 4, 2, head_dim, device="cuda")
    OPERATOR.use(asked, "hopper_fast")
    try:
        error = (ModelNew()(*inputs) - PROBLEM.oracle(*inputs)).abs().max().item()
    finally:
        OPERATOR.use(asked, "")
    assert 1e-5 < error < 3e-3
