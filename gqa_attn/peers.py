"""Other ways to the same result, for ``python -m kernels bench gqa_attn``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["peers"]


def peers(device: str) -> dict[str, Callable[..., Tensor]]:
    """Routes through torch on ``device``, each called with q, k, v as ``Model`` is.

    All take seqlen_q = seqlen_k: torch aligns the mask of other lengths differently. On
    CUDA there is one for each fused backend, for what torch picks need not be the fastest.
    """
    found: dict[str, Callable[..., Tensor]] = {
        "SDPA, enable_gqa": sdpa_enable_gqa,
        "SDPA, expanded K/V": sdpa_expanded,
    }
    if device == "cuda":
        found |= _backends()
    found["vectorised"] = vectorised
    return found


def _backends() -> dict[str, Callable[..., Tensor]]:
    """The fused backends one by one. Efficient attention alone computes in full float32."""
    from torch.nn.attention import SDPBackend

    half = (torch.float16, torch.bfloat16)
    return {
        "SDPA efficient, expanded K/V": _only(SDPBackend.EFFICIENT_ATTENTION, sdpa_expanded),
        "SDPA cuDNN, enable_gqa": _only(SDPBackend.CUDNN_ATTENTION, sdpa_enable_gqa, half),
        "SDPA cuDNN, expanded K/V": _only(SDPBackend.CUDNN_ATTENTION, sdpa_expanded, half),
        "SDPA flash, enable_gqa": _only(SDPBackend.FLASH_ATTENTION, sdpa_enable_gqa, half),
    }


def _only(
    backend: Any, route: Callable[..., Tensor], dtypes: Sequence[torch.dtype] = ()
) -> Callable[..., Tensor]:
    """``route`` on one backend, for ``dtypes`` alone where given."""
    from torch.nn.attention import sdpa_kernel

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if dtypes and q.dtype not in dtypes:
            supported = ", ".join(str(dtype) for dtype in dtypes)
            raise TypeError(f"{backend.name} does not take {q.dtype}; supported: {supported}")
        with sdpa_kernel(backend):
            return route(q, k, v)

    return call


def sdpa_enable_gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``scaled_dot_product_attention`` as its documentation says for grouped queries."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def sdpa_expanded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One K and V head for each query head, then whatever backend torch picks."""
    q, k, v = (x.transpose(1, 2) for x in (q, *_expand(q, k, v)))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def vectorised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two batched products with the whole score matrix in memory."""
    group_size = q.shape[2] // k.shape[2]
    q = q.unflatten(2, (k.shape[2], group_size))
    logits = torch.einsum("btkgd,bskd->bkgts", q, k) / math.sqrt(q.shape[-1])
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = torch.softmax(logits.masked_fill(hidden, -math.inf), dim=-1)
    return torch.einsum("bkgts,bskd->btkgd", weights, v).flatten(2, 3)


def _expand(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    group_size = q.shape[2] // k.shape[2]
    return k.repeat_interleave(group_size, dim=2), v.repeat_interleave(group_size, dim=2)
