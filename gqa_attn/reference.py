"""The readable definition of causal grouped-query attention, and its float64 oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kernels.attention import attention_oracle, attention_oracle_rows

__all__ = ["Model", "oracle", "oracle_rows"]


class Model(nn.Module):
    """Causal grouped-query attention, one query row of one head at a time."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention with q's shape and dtype; 16-bit inputs are computed in float32.

        q: [batch, seqlen_q, num_heads, head_dim]
        k, v: [batch, seqlen_k, num_kv_heads, head_dim]; num_heads a multiple of num_kv_heads
        """
        seqlen_q, num_heads, head_dim = q.shape[1:]
        seqlen_k, num_kv_heads = k.shape[1:3]
        if q.numel() == 0 or seqlen_k == 0:
            return q.new_zeros(q.shape)
        group_size = num_heads // num_kv_heads
        softmax_scale = 1.0 / math.sqrt(head_dim)
        compute = torch.promote_types(q.dtype, torch.float32)
        heads = []
        for head in range(num_heads):
            queries = q[:, :, head].to(compute)
            keys = k[:, :, head // group_size].to(compute)
            values = v[:, :, head // group_size].to(compute)
            rows = []
            for row in range(seqlen_q):
                visible = min(row + 1, seqlen_k)
                logits = queries[:, row : row + 1] @ keys[:, :visible].transpose(1, 2) * softmax_scale
                rows.append(torch.softmax(logits, dim=-1) @ values[:, :visible])
            heads.append(torch.cat(rows, dim=1))
        return torch.stack(heads, dim=2).to(q.dtype)


def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in float64, vectorised, for finite inputs; returns float64."""
    return attention_oracle(q, k, v)


def oracle_rows(rows: Sequence[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The query rows ``rows`` of :func:`oracle`: float64 [batch, len(rows), num_heads, head_dim]."""
    return attention_oracle_rows(q[:, list(rows)], k, v, rows)
