"""Other ways to the same result, for ``python -m kernels bench fp8_attn``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["peers"]


def peers(device: str) -> dict[str, Callable[..., Tensor]]:
    """Routes through torch on ``device``, each called as ``Model`` is: carriers, then scales.

    On CUDA two fused backends have one of their own: efficient attention, which computes in
    full float32, and cuDNN's in bfloat16, which is faster and whose error is far larger.
    """
    found: dict[str, Callable[..., Tensor]] = {"dequantise + SDPA": sdpa}
    if device == "cuda":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def sdpa_efficient(*inputs: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                return sdpa(*inputs)

        def sdpa_cudnn(*inputs: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return sdpa_bfloat16(*inputs)

        found["dequantise + SDPA efficient"] = sdpa_efficient
        found["dequantise + SDPA cuDNN, bfloat16"] = sdpa_cudnn
    found["vectorised"] = vectorised
    return found


def sdpa(q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor) -> Tensor:
    """Float32 copies of q, k and v, then whatever backend torch picks."""
    q, k, v = _dequantised((q_q, k_q, v_q), (q_scale, k_scale, v_scale))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def sdpa_bfloat16(
    q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
) -> Tensor:
    """Bfloat16 copies of q, k and v, then whatever backend torch picks; the result as float32."""
    operands = _dequantised((q_q, k_q, v_q), (q_scale, k_scale, v_scale))
    q, k, v = (x.bfloat16() for x in operands)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).float()


def vectorised(
    q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
) -> Tensor:
    """Two batched products with the whole score matrix in memory."""
    q, k, v = _dequantised((q_q, k_q, v_q), (q_scale, k_scale, v_scale))
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return (torch.softmax(logits.masked_fill(hidden, -math.inf), dim=-1) @ v).transpose(1, 2)


def _dequantised(carriers: tuple[Tensor, ...], scales: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Float32, as [batch, num_heads, seqlen, head_dim]."""
    pairs = zip(carriers, scales, strict=True)
    return tuple((x.float() * scale.view(1, 1, -1, 1)).transpose(1, 2) for x, scale in pairs)
