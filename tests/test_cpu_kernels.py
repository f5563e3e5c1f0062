"""What a caller of ModelNew cannot see of the CPU kernels: other instruction sets, and the use of threads."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable

import pytest
import torch
from attention_params import attention_params
from torch import Tensor

from kernels.device import cpu_arch
from kernels.jit.load import load, obtain
from kernels.jit.spec import kernel_spec
from kernels.problem import Request, find_problem

GQA = find_problem("gqa_attn")
FP8 = find_problem("fp8_attn")
HEAD_DIM = 32

Body = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
ParallelFor = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, Body, ctypes.c_void_p
)


class HostContext(ctypes.Structure):
    """kernels/bindings/attention_params.h"""

    _fields_ = (("parallel_for", ParallelFor), ("num_threads", ctypes.c_int32))


def _launch(
    q: Tensor, k: Tensor, v: Tensor, parallel_for: Callable[..., int], num_threads: int
) -> tuple[int, Tensor]:
    """The kernel's error code and output, with ``parallel_for`` in torch's place."""
    request = Request("cpu", cpu_arch(), "float32", HEAD_DIM, q.shape[2] // k.shape[2])
    kernel = load(kernel_spec(GQA, request)).kernel_launch
    kernel.restype = ctypes.c_int32
    out = torch.full(q.shape, math.nan)
    params = attention_params(q, k, v, out)
    host = HostContext(ParallelFor(parallel_for), num_threads)
    return kernel(ctypes.byref(params), ctypes.byref(host)), out


@pytest.fixture
def inputs() -> list[Tensor]:
    """More rows than a task holds and more keys than a block holds; groups of 3 rows straddle tiles."""
    return GQA.make_inputs(
        batch=2, seqlen_q=150, seqlen_k=150, num_heads=6, num_kv_heads=2, head_dim=HEAD_DIM
    )


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 instruction sets")
@pytest.mark.parametrize("arch", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("problem", [GQA, FP8], ids=lambda problem: problem.name)
def test_compiles_for_every_x86_level(problem, arch) -> None:
    # Whatever this machine has, another one has another level.
    built = obtain(kernel_spec(problem, problem.default_request("cpu", arch)))
    assert built.path.is_file()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5, 16, 64])
def test_any_number_of_threads_gives_the_same_bits(inputs, num_threads) -> None:
    pieces = []

    def one_after_another(begin, end, grain, body, context) -> int:
        for worker in reversed(range(begin, end)):
            pieces.append(worker)
            body(worker, worker + 1, context)
        return 0

    code, out = _launch(*inputs, one_after_another, num_threads)
    assert code == 0
    assert len(pieces) <= num_threads
    expected = GQA.oracle(*inputs)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=0)
    _, alone = _launch(*inputs, one_after_another, 1)
    assert torch.equal(out, alone)


def test_one_piece_for_all_workers(inputs) -> None:
    # What torch does inside another parallel region: the whole range in one call.
    def nested(begin, end, grain, body, context) -> int:
        body(begin, end, context)
        return 0

    code, out = _launch(*inputs, nested, 8)
    assert code == 0
    torch.testing.assert_close(out.double(), GQA.oracle(*inputs), atol=2e-6, rtol=0)


def test_a_pool_that_fails_is_an_error(inputs) -> None:
    code, _ = _launch(*inputs, lambda *_: 1, 4)
    assert code != 0


def test_a_pool_that_runs_nothing_is_an_error(inputs) -> None:
    code, _ = _launch(*inputs, lambda *_: 0, 4)
    assert code != 0


def test_a_tiny_problem_wakes_no_thread(inputs) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("asked for threads")

    q, k, v = (x[:1, :8] for x in inputs)
    code, out = _launch(q, k, v, refuse, 4)
    assert code == 0
    torch.testing.assert_close(out.double(), GQA.oracle(q, k, v), atol=2e-6, rtol=0)
