"""Which kernel serves which request, fastest first."""

from __future__ import annotations

from kernels.attention import MAX_HEAD_DIM
from kernels.problem import Request, Variant

from .model_new import DTYPES

__all__ = ["VARIANTS", "default_request"]

# How each dtype is spelled in C++: kernels/cuda/types.cuh, kernels/cpu/attention/types.h.
CPP_TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "float8_e4m3fn": "Float8E4M3",
    "float8_e5m2": "Float8E5M2",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "float",
}


def _cuda_arguments(request: Request) -> tuple[str, ...]:
    return CPP_TYPES[request.dtype], str(request.head_dim), str(request.group_size)


def _cpu_arguments(request: Request) -> tuple[str, ...]:
    return CPP_TYPES[request.dtype], str(request.head_dim)


def _serves(request: Request) -> bool:
    return request.dtype in DTYPES and 1 <= request.head_dim <= MAX_HEAD_DIM and request.group_size == 1


VARIANTS = (
    Variant(
        name="portable",
        device="cuda",
        source="cuda/fp8_attn/portable.cu",
        launcher="fp8_attn::launch",
        template_arguments=_cuda_arguments,
        serves=_serves,
        why="any architecture, carrier, head_dim, stride and length",
    ),
    Variant(
        name="vectorised",
        device="cpu",
        source="cpu/fp8_attn/vectorised.cpp",
        launcher="fp8_attn::launch",
        template_arguments=_cpu_arguments,
        serves=_serves,
        why="the only CPU kernel",
    ),
)


def default_request(device: str, arch: str) -> Request:
    """The specialisation that ``get_inputs()`` needs."""
    return Request(device=device, arch=arch, dtype="int8", head_dim=32, group_size=1)
