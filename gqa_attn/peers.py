"""Other ways to the same result, for ``python -m kernels bench gqa_attn``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["peers"]


def peers(device: str) -> dict[str, Callable[..., Tensor]]:
    """Routes through torch on ``device``, each called with q, k, v as ``Model`` is.

    All take seqlen_q = seqlen_k: torch aligns the mask of other lengths differently.
    """
    found: dict[str, Callable[..., Tensor]] = {
        "SDPA, enable_gqa": sdpa_enable_gqa,
        "SDPA, expanded K/V": sdpa_expanded,
    }
    if device == "cuda":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def sdpa_efficient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """The same on the one fused backend that computes in full float32."""
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                return sdpa_expanded(q, k, v)

        found["SDPA efficient, expanded K/V"] = sdpa_efficient
    found["vectorised"] = vectorised
    return found


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
