"""Which kernel serves which request, fastest first."""

from __future__ import annotations

from kernels.attention import MAX_HEAD_DIM
from kernels.device import arch_number
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


# As in gqa_attn: rows of 64 elements are the narrowest the tensor cores read, and the default specialisation,
# which is head_dim 32, must be built in little time.
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
    return request.dtype in DTYPES and 1 <= request.head_dim <= MAX_HEAD_DIM and request.group_size == 1


def _serves_tensor(request: Request) -> bool:
    return _serves(request) and arch_number(request.arch) >= 80 and request.head_dim % 4 == 0


def _serves_hopper(request: Request) -> bool:
    return _serves(request) and request.arch == "sm_90a" and request.head_dim >= MIN_HOPPER_HEAD_DIM


VARIANTS = (
    Variant(
        name="hopper",
        device="cuda",
        source="cuda/fp8_attn/hopper.cu",
        launcher="fp8_attn::launch",
        template_arguments=_hopper_arguments,
        serves=_serves_hopper,
        why="S exact in int8 on wgmma, other carriers as fp16 parts; not measured on a GPU yet, so "
        "never chosen by itself",
        chosen=False,
    ),
    Variant(
        name="hopper_fast",
        device="cuda",
        source="cuda/fp8_attn/hopper.cu",
        launcher="fp8_attn::launch",
        template_arguments=_hopper_fast_arguments,
        serves=_serves_hopper,
        why="as near as half precision: weights and float32 carriers of 11 bits; not measured yet",
        chosen=False,
    ),
    Variant(
        name="tensor",
        device="cuda",
        source="cuda/fp8_attn/tensor.cu",
        launcher="fp8_attn::launch",
        template_arguments=_cuda_arguments,
        serves=_serves_tensor,
        why="bfloat16 parts on mma.sync at fp32 accuracy, one launch; not measured on a GPU yet",
        chosen=False,
    ),
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
