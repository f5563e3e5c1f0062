"""``kernels/bindings/attention_params.h`` for tests that call a kernel library without its binding."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

from torch import Tensor

Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class AttentionParams(ctypes.Structure):
    """The structure of this name."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "q_scale", "k_scale", "v_scale")),
        *((name, ctypes.c_int64) for name in ("q_scale_stride", "k_scale_stride", "v_scale_stride")),
        *((name, ctypes.c_int64) for name in ("batch", "seqlen_q", "seqlen_k")),
        *((name, ctypes.c_int64) for name in ("num_heads", "num_kv_heads", "head_dim")),
        *((name, ctypes.c_int64 * 4) for name in ("q_stride", "k_stride", "v_stride")),
        ("softmax_scale", ctypes.c_double),
        ("allocate", Allocate),
        ("allocator", ctypes.c_void_p),
    )


def attention_params(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, scales: Sequence[Tensor] = ()
) -> AttentionParams:
    """One call: q and out [batch, seqlen_q, num_heads, head_dim], k and v [batch, seqlen_k, num_kv_heads,
    head_dim], scales three float32 [num_heads] or none. Holds addresses: the tensors must live as long."""
    params = AttentionParams(
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        out=out.data_ptr(),
        batch=q.shape[0],
        seqlen_q=q.shape[1],
        seqlen_k=k.shape[1],
        num_heads=q.shape[2],
        num_kv_heads=k.shape[2],
        head_dim=q.shape[3],
        q_stride=q.stride(),
        k_stride=k.stride(),
        v_stride=v.stride(),
        softmax_scale=1 / math.sqrt(q.shape[3]),
    )
    for name, scale in zip("qkv", scales, strict=False):
        setattr(params, f"{name}_scale", scale.data_ptr())
        setattr(params, f"{name}_scale_stride", scale.stride(0))
    return params
