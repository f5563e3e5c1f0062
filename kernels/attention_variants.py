"""What the variants of the attention problems have in common: their arguments, and where they serve."""

from __future__ import annotations

from kernels.attention import MAX_HEAD_DIM
from kernels.device import arch_number
from kernels.problem import NARROW_HEAD_DIM, Request

__all__ = [
    "CPP_TYPES",
    "MIN_HOPPER_HEAD_DIM",
    "cpu_arguments",
    "cuda_arguments",
    "has_head_dim",
    "hopper_arguments",
    "hopper_fast_arguments",
    "on_hopper",
    "on_tensor_cores",
]

# How each dtype is spelled in C++: kernels/cuda/types.cuh, kernels/cpu/attention/types.h.
CPP_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "float8_e4m3fn": "Float8E4M3",
    "float8_e5m2": "Float8E5M2",
}

# Rows of 64 elements are the narrowest the tensor cores read. Below this the library for short
# sequences, the default inputs' too, does without: with one kernel more its build takes twice as long.
MIN_HOPPER_HEAD_DIM = NARROW_HEAD_DIM + 1


def cuda_arguments(request: Request) -> tuple[str, ...]:
    return CPP_TYPES[request.dtype], str(request.head_dim), str(request.group_size)


def hopper_arguments(request: Request) -> tuple[str, ...]:
    return *cuda_arguments(request), "false"


def hopper_fast_arguments(request: Request) -> tuple[str, ...]:
    return *cuda_arguments(request), "true"


def cpu_arguments(request: Request) -> tuple[str, ...]:
    return CPP_TYPES[request.dtype], str(request.head_dim)


def has_head_dim(request: Request) -> bool:
    """Whether the operators take the request's head_dim."""
    return 1 <= request.head_dim <= MAX_HEAD_DIM


def on_tensor_cores(request: Request) -> bool:
    """Whether ``tensor.cuh`` has kernels for the request's architecture and head_dim."""
    return has_head_dim(request) and arch_number(request.arch) >= 80 and request.head_dim % 4 == 0


def on_hopper(request: Request) -> bool:
    """Whether ``hopper.cuh`` has kernels for the request's architecture and head_dim."""
    is_worth_it = request.head_dim >= MIN_HOPPER_HEAD_DIM or request.long
    return has_head_dim(request) and request.arch == "sm_90a" and is_worth_it
