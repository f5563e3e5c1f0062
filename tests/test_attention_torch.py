"""kernels/attention.py: the torch forms against the loop reference, and the wording of argument errors."""

from __future__ import annotations

import math

import pytest
import torch
from attention_checks import PeakMemory, assert_close, assert_same, gradients

from gqa_attn.inputs import make_inputs
from gqa_attn.reference import Model
from kernels.attention import (
    BACKWARD_ROWS,
    FORWARD_ROWS,
    attention,
    attention_forward,
    attention_oracle,
    attention_oracle_rows,
    check_shapes,
    check_tensors,
)
from kernels.layouts import LAYOUTS, apply_layout
from kernels.problem import Tolerance

EXACT = Tolerance(atol=1e-12, rtol=1e-12)

# (batch, seqlen_q, seqlen_k, num_heads, num_kv_heads, head_dim)
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, FORWARD_ROWS, FORWARD_ROWS, 4, 2, 5),
    (2, FORWARD_ROWS + 1, FORWARD_ROWS - 1, 4, 2, 5),
    (1, BACKWARD_ROWS + 1, BACKWARD_ROWS + 1, 3, 1, 8),
    (2, 2 * BACKWARD_ROWS, 40, 2, 2, 3),
    (2, 40, 300, 2, 1, 3),
]


@pytest.fixture
def float64_inputs(device):
    return lambda shape: make_inputs(*shape, dtype="float64", device=device)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_is_the_reference(shape, float64_inputs):
    inputs = float64_inputs(shape)
    assert_close(attention_forward(*inputs), Model()(*inputs), EXACT)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_oracle_is_the_reference(shape, float64_inputs):
    inputs = float64_inputs(shape)
    assert_close(attention_oracle(*inputs), Model()(*inputs), EXACT)


def test_oracle_in_several_steps(monkeypatch):
    """One step holds all rows of small inputs; a smaller budget takes several."""
    inputs = make_inputs(2, 50, 45, 4, 2, 5, dtype="float64")
    monkeypatch.setattr("kernels.attention.ORACLE_ELEMENTS", 2 * 4 * 45 * 7)
    assert_close(attention_oracle(*inputs), Model()(*inputs), EXACT)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward_is_the_references_autograd(shape, float64_inputs):
    inputs = float64_inputs(shape)
    for got, want in zip(
        gradients(attention, inputs, [0, 1, 2]), gradients(Model(), inputs, [0, 1, 2]), strict=True
    ):
        assert_close(got, want, EXACT)


def test_gradcheck():
    inputs = [x.requires_grad_() for x in make_inputs(1, 6, 5, 4, 2, 3, dtype="float64")]
    assert torch.autograd.gradcheck(attention, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(attention, inputs, check_batched_grad=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
@pytest.mark.parametrize("step", [0, FORWARD_ROWS + 3])
def test_forward_spreads_nan_and_inf_as_the_reference_does(which, bad, step):
    inputs = make_inputs(1, 2 * FORWARD_ROWS + 5, 2 * FORWARD_ROWS + 5, 2, 1, 4, dtype="float64")
    inputs[which][0, step, 0, 1] = bad
    assert_close(attention_forward(*inputs), Model()(*inputs), EXACT)


@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
def test_backward_spreads_nan_as_the_reference_does(which):
    inputs = make_inputs(1, 70, 70, 2, 1, 4, dtype="float64")
    inputs[which][0, 40, 0, 1] = math.nan
    for got, want in zip(
        gradients(attention, inputs, [0, 1, 2]), gradients(Model(), inputs, [0, 1, 2]), strict=True
    ):
        assert_close(got, want, EXACT)


def test_memory_is_linear_in_sequence_length():
    def peak(seqlen: int) -> int:
        inputs = make_inputs(1, seqlen, seqlen, 2, 1, 8)
        with PeakMemory() as memory:
            gradients(attention, inputs, [0, 1, 2])
        return memory.peak_bytes

    # Both are many blocks long; quadratic memory would quadruple.
    assert peak(32 * BACKWARD_ROWS) < 2.2 * peak(16 * BACKWARD_ROWS)


def test_nothing_to_see():
    """No keys: zero rows, zero gradients; no rows: no rows."""
    inputs = make_inputs(2, 3, 0, 2, 1, 4)
    assert_same(attention(*inputs), torch.zeros(2, 3, 2, 4))
    for got, x in zip(gradients(attention, inputs, [0, 1, 2]), inputs, strict=True):
        assert_same(got, torch.zeros_like(x))
    assert attention(*make_inputs(2, 0, 3, 2, 1, 4)).shape == (2, 0, 2, 4)
    assert attention(*make_inputs(0, 3, 3, 2, 1, 4)).shape == (0, 3, 2, 4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype):
    """16-bit inputs are computed in float32 and rounded once; gradients have the inputs' dtype."""
    inputs = make_inputs(1, 40, 40, 2, 1, 8, dtype=dtype)
    rounding = Tolerance(rtol=1e-4 + {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 0.0))
    assert_close(attention(*inputs), Model()(*inputs), rounding)
    assert [g.dtype for g in gradients(attention, inputs, [0, 1, 2])] == [x.dtype for x in inputs]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_the_values_and_differ_in_memory(layout):
    plain = make_inputs(2, 5, 5, 4, 2, 3)
    views = apply_layout(layout, *plain)
    for view, x in zip(views, plain, strict=True):
        assert view.shape == x.shape
        if layout != "expanded":
            assert_same(view, x)
    moved = [
        v.stride() != x.stride() or v.storage_offset() != x.storage_offset()
        for v, x in zip(views, plain, strict=True)
    ]
    assert any(moved) == (layout != "contiguous")


def test_unknown_names_say_which_there_are():
    with pytest.raises(ValueError, match="'sideways'.*contiguous"):
        make_inputs(1, 1, 1, 1, 1, 1, layout="sideways")
    with pytest.raises(ValueError, match="'pi'.*randn"):
        make_inputs(1, 1, 1, 1, 1, 1, values="pi")


def test_check_tensors():
    x = torch.zeros(1, 1, 1, 1)
    check_tensors({"a": x, "b": x}, (torch.float32,))
    with pytest.raises(TypeError, match=r"b must be a torch\.Tensor; given list"):
        check_tensors({"a": x, "b": [1.0]}, (torch.float32,))
    with pytest.raises(TypeError, match=r"a has layout torch\.sparse_coo; supported: torch\.strided"):
        check_tensors({"a": x.to_sparse()}, (torch.float32,))
    with pytest.raises(TypeError, match=r"a has dtype torch\.float32; supported: torch\.int8, torch\.uint8"):
        check_tensors({"a": x}, (torch.int8, torch.uint8))
    with pytest.raises(
        TypeError, match=r"a, b must have one dtype; given a torch\.float32, b torch\.float64"
    ):
        check_tensors({"a": x, "b": x.double()}, (torch.float32, torch.float64))
    with pytest.raises(ValueError, match="a is on cpu; supported devices: cuda"):
        check_tensors({"a": x}, (torch.float32,), devices=("cuda",))
    with pytest.raises(ValueError, match="one device; given a on cpu, b on meta"):
        check_tensors({"a": x, "b": x.to("meta")}, (torch.float32,))


def test_check_shapes():
    def check(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
        check_shapes("q", torch.empty(q), "k", torch.empty(k), "v", torch.empty(v))

    check((2, 3, 4, 5), (2, 7, 2, 5), (2, 7, 2, 5))
    with pytest.raises(ValueError, match=r"k must be 4-D .*; given 3-D \(2, 3, 5\)"):
        check((2, 3, 4, 5), (2, 3, 5), (2, 3, 5))
    with pytest.raises(ValueError, match=r"one shape; given k \(2, 3, 4, 5\), v \(2, 6, 4, 5\)"):
        check((2, 3, 4, 5), (2, 3, 4, 5), (2, 6, 4, 5))
    with pytest.raises(ValueError, match=r"one batch size; given q \(1, 3, 4, 5\), k \(2, 3, 4, 5\)"):
        check((1, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5))
    with pytest.raises(ValueError, match=r"one head_dim; given q \(2, 3, 4, 6\), k \(2, 3, 4, 5\)"):
        check((2, 3, 4, 6), (2, 3, 4, 5), (2, 3, 4, 5))
    for head_dim in (0, 257):
        with pytest.raises(
            ValueError, match=f"head_dim={head_dim} is not supported on CPU; supported: 1 to 256"
        ):
            check((1, 1, 1, head_dim), (1, 1, 1, head_dim), (1, 1, 1, head_dim))
    with torch.device("meta"), pytest.raises(ValueError, match="head_dim=300 is not supported; supported: 1"):
        check((1, 1, 1, 300), (1, 1, 1, 300), (1, 1, 1, 300))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_the_oracle_are_the_oracles_rows(shape, float64_inputs):
    q, k, v = float64_inputs(shape)
    rows = sorted({0, q.shape[1] // 2, q.shape[1] - 1})
    assert_close(attention_oracle_rows(q[:, rows], k, v, rows), attention_oracle(q, k, v)[:, rows], EXACT)


def test_rows_of_the_oracle_without_keys_are_zero(float64_inputs):
    q, k, v = float64_inputs((1, 5, 0, 2, 1, 3))
    assert_same(attention_oracle_rows(q[:, [1, 4]], k, v, [1, 4]), torch.zeros_like(q[:, [1, 4]]))
