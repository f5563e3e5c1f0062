"""Checks that the tests of the attention packages share."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.device import cpu_arch, cuda_arch
from kernels.evaluate.correctness import compare, compare_with_oracle
from kernels.problem import Case, Problem, Request, Tolerance, is_long

USUAL = Tolerance()


def request_of(case: Case, device: str) -> Request:
    """The specialisation that ``case`` needs on ``device``."""
    shape = case.shape
    heads = shape["num_heads"]
    return Request(
        device=device,
        arch=cpu_arch() if device == "cpu" else cuda_arch(0),
        dtype=case.dtype,
        head_dim=shape["head_dim"],
        group_size=heads // shape.get("num_kv_heads", heads),
        long=is_long(device, shape["head_dim"], shape),
    )


def inputs_of(problem: Problem, case: Case, device: str) -> list[Tensor]:
    """The inputs of ``case`` on ``device``."""
    return problem.make_inputs(**case.shape, dtype=case.dtype, device=device, **case.options)


def assert_close(got: Tensor, want: Tensor, tolerance: Tolerance = USUAL) -> None:
    """Same shape, dtype and device, values within ``tolerance``, NaN where NaN is; else say where not."""
    comparison = compare(got, want, tolerance)
    assert comparison.passed, comparison.reason


def assert_same(got: Tensor, want: Tensor) -> None:
    """Bitwise the same, NaN in the same places."""
    assert_close(got, want, Tolerance(atol=0.0, rtol=0.0))


def assert_parity(problem: Problem, case: Case, device: str) -> None:
    """The project's rule: close to the reference, and no more than twice its error against float64."""
    inputs = inputs_of(problem, case, device)
    got = problem.model_new(*problem.get_init_inputs())(*inputs)
    want = problem.model(*problem.get_init_inputs())(*inputs)
    assert got.is_contiguous()
    assert_close(got, want, case.tolerance)
    against_oracle = compare_with_oracle(got, want, problem.oracle(*inputs), case.tolerance)
    assert against_oracle.passed, against_oracle.reason


def gradients(
    model: Callable[..., Tensor], inputs: list[Tensor], wanted: list[int], seed: int = 1
) -> list[Tensor]:
    """Gradients of a fixed random weighting of ``model``'s output for the inputs numbered in ``wanted``."""
    leaves = [x.detach().clone().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
    out = model(*leaves)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device, out.dtype)
    return list(torch.autograd.grad(out, [leaves[i] for i in wanted], weights))


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of storages that torch operations return, and their peak while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor):
                self._count(x.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.live:
            return
        self.live[key] = storage.nbytes()
        weakref.finalize(storage, self.live.pop, key, None)
        self.peak_bytes = max(self.peak_bytes, sum(self.live.values()))


def cuda_kernels(call: Callable[[], Any]) -> list[str]:
    """Names of everything ``call`` runs on the GPU: kernels, copies and fills."""
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def requested_bytes(call: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """``call``'s result, and the most bytes that were asked of the GPU's allocator at once meanwhile."""
    gc.collect()  # what is freed meanwhile would be taken off
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    out = call()
    torch.cuda.synchronize()
    return out, torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
