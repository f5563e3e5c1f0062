"""Which kernel serves which request, fastest first."""

from __future__ import annotations

from kernels.attention import MAX_HEAD_DIM
from kernels.device import arch_number
from kernels.problem import Request, Variant

from .model_new import DTYPES

__all__ = ["VARIANTS", "default_request"]

# How each dtype is spelled in C++: kernels/cuda/types.cuh, kernels/cpu/attention/types.h.
CPP_TYPES = {"float32": "float", "float64": "double", "float16": "Half", "bfloat16": "BFloat16"}


# Below this a library with one kernel more would make the first call wait longer, for little: rows of 64
# elements are the narrowest the tensor cores read.
MIN_HOPPER_HEAD_DIM = 33


def _cuda_arguments(request: Request) -> tuple[str, ...]:
    return CPP_TYPES[request.dtype], str(request.head_dim), str(request.group_size)


def _hopper_arguments(request: Request) -> tuple[str, ...]:
    return *_cuda_arguments(request), "false"


def _hopper_fast_arguments(request: Request) -> tuple[str, ...]:
    return *_cuda_arguments(request), "true"


def _cpu_arguments(request: Request) -> tuple[str, ...]:
    return CPP_TYPES[request.dtype], str(request.head_dim)


def _serves(request: Request) -> bool:
    return request.dtype in DTYPES and 1 <= request.head_dim <= MAX_HEAD_DIM and request.group_size >= 1


def _serves_tensor(request: Request) -> bool:
    return (
        _serves(request)
        and request.dtype != "float64"
        and arch_number(request.arch) >= 80
        and request.head_dim % 4 == 0
    )


def _serves_hopper(request: Request) -> bool:
    return (
        request.arch == "sm_90a"
        and request.dtype in ("float32", "float16", "bfloat16")
        and MIN_HOPPER_HEAD_DIM <= request.head_dim <= MAX_HEAD_DIM
        and request.group_size >= 1
    )


def _serves_hopper_fast(request: Request) -> bool:
    return request.dtype == "float32" and _serves_hopper(request)


VARIANTS = (
    Variant(
        name="hopper",
        device="cuda",
        source="cuda/gqa_attn/hopper.cu",
        launcher="gqa_attn::launch",
        template_arguments=_hopper_arguments,
        serves=_serves_hopper,
        why="fp32 as three fp16 products on wgmma, five times the speed of fp32 arithmetic; holds the "
        "portable and short kernels too, for lengths where they are faster",
    ),
    Variant(
        name="hopper_fast",
        device="cuda",
        source="cuda/gqa_attn/hopper.cu",
        launcher="gqa_attn::launch",
        template_arguments=_hopper_fast_arguments,
        serves=_serves_hopper_fast,
        why="as near as half precision: 11 bits of each operand and weight; not measured on a GPU yet",
        chosen=False,
    ),
    Variant(
        name="tensor",
        device="cuda",
        source="cuda/gqa_attn/tensor.cu",
        launcher="gqa_attn::launch",
        template_arguments=_cuda_arguments,
        serves=_serves_tensor,
        why="bfloat16 parts on mma.sync at fp32 accuracy, one launch; not measured on a GPU yet",
        chosen=False,
    ),
    Variant(
        name="portable",
        device="cuda",
        source="cuda/gqa_attn/portable.cu",
        launcher="gqa_attn::launch",
        template_arguments=_cuda_arguments,
        serves=_serves,
        why="any architecture, head_dim, stride and length; the group size is a constant, "
        "so that one read of K and V serves a whole group",
    ),
    Variant(
        name="vectorised",
        device="cpu",
        source="cpu/gqa_attn/vectorised.cpp",
        launcher="gqa_attn::launch",
        template_arguments=_cpu_arguments,
        serves=_serves,
        why="the only CPU kernel; the group size is a run-time value, so a new one costs no build",
    ),
)


def default_request(device: str, arch: str) -> Request:
    """The specialisation that ``get_inputs()`` needs."""
    return Request(device=device, arch=arch, dtype="float32", head_dim=32, group_size=4)
