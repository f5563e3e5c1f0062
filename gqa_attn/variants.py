"""Which kernel serves which request, fastest first."""

from __future__ import annotations

from kernels.attention_variants import (
    cpu_arguments,
    cuda_arguments,
    has_head_dim,
    hopper_arguments,
    hopper_fast_arguments,
    on_hopper,
    on_tensor_cores,
)
from kernels.problem import Request, Variant

from .model_new import DTYPES

__all__ = ["VARIANTS", "default_request"]


def _serves(request: Request) -> bool:
    return request.dtype in DTYPES and has_head_dim(request) and request.group_size >= 1


def _serves_tensor(request: Request) -> bool:
    return _serves(request) and request.dtype != "float64" and on_tensor_cores(request)


def _serves_hopper(request: Request) -> bool:
    return _serves(request) and request.dtype != "float64" and on_hopper(request)


def _serves_hopper_fast(request: Request) -> bool:
    return request.dtype == "float32" and not request.long and _serves_hopper(request)


VARIANTS = (
    Variant(
        name="hopper_fast",
        device="cuda",
        source="cuda/gqa_attn/hopper.cu",
        launcher="gqa_attn::launch",
        template_arguments=hopper_fast_arguments,
        serves=_serves_hopper_fast,
        why="one fp16 part, 11 bits, of each operand and weight: errors of about 1.5e-3 on normal inputs; by "
        "itself where torch's float32 matmul precision is below highest",
        fast=True,
    ),
    Variant(
        name="hopper",
        device="cuda",
        source="cuda/gqa_attn/hopper.cu",
        launcher="gqa_attn::launch",
        template_arguments=hopper_arguments,
        serves=_serves_hopper,
        why="fp32 as three fp16 products on wgmma, five times the speed of fp32 arithmetic; holds the "
        "other kernels too, for lengths where they are faster",
    ),
    Variant(
        name="tensor",
        device="cuda",
        source="cuda/gqa_attn/tensor.cu",
        launcher="gqa_attn::launch",
        template_arguments=cuda_arguments,
        serves=_serves_tensor,
        why="bfloat16 parts on mma.sync at fp32 accuracy, one launch; by name alone",
        chosen=False,
    ),
    Variant(
        name="portable",
        device="cuda",
        source="cuda/gqa_attn/portable.cu",
        launcher="gqa_attn::launch",
        template_arguments=cuda_arguments,
        serves=_serves,
        why="any architecture, head_dim, stride and length; the group size is a constant, "
        "so that one read of K and V serves a whole group",
    ),
    Variant(
        name="vectorised",
        device="cpu",
        source="cpu/gqa_attn/vectorised.cpp",
        launcher="gqa_attn::launch",
        template_arguments=cpu_arguments,
        serves=_serves,
        why="the only CPU kernel; the group size is a run-time value, so a new one costs no build",
    ),
)


def default_request(device: str, arch: str) -> Request:
    """The specialisation that ``get_inputs()`` needs."""
    return Request(device=device, arch=arch, dtype="float32", head_dim=32, group_size=4)
