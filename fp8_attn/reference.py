"""The readable definition of attention over low-precision operands, and its float64 oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kernels.attention import attention_oracle, attention_oracle_rows

__all__ = ["Model", "oracle", "oracle_rows"]


class Model(nn.Module):
    """Causal attention over dequantised q, k and v, one query row of one head at a time."""

    def forward(
        self, q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
    ) -> Tensor:
        """Return attention as float32, shaped as ``q_q``.

        q_q: [batch, seqlen, num_heads, head_dim], any carrier dtype, k_q and v_q likewise
        q_scale, k_scale, v_scale: float32 [num_heads]; an operand means ``x.float() * scale``
        """
        q = q_q.float() * q_scale.view(1, 1, -1, 1)
        k = k_q.float() * k_scale.view(1, 1, -1, 1)
        v = v_q.float() * v_scale.view(1, 1, -1, 1)
        seqlen_q, num_heads, head_dim = q.shape[1:]
        seqlen_k = k.shape[1]
        if q.numel() == 0 or seqlen_k == 0:
            return q.new_zeros(q.shape)
        softmax_scale = 1.0 / math.sqrt(head_dim)
        heads = []
        for head in range(num_heads):
            rows = []
            for row in range(seqlen_q):
                visible = min(row + 1, seqlen_k)
                keys, values = k[:, :visible, head], v[:, :visible, head]
                logits = q[:, row : row + 1, head] @ keys.transpose(1, 2) * softmax_scale
                rows.append(torch.softmax(logits, dim=-1) @ values)
            heads.append(torch.cat(rows, dim=1))
        return torch.stack(heads, dim=2)


def oracle(
    q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
) -> Tensor:
    """The same in float64, vectorised, for finite inputs; returns float64."""
    q = q_q.double() * q_scale.double().view(1, 1, -1, 1)
    k = k_q.double() * k_scale.double().view(1, 1, -1, 1)
    v = v_q.double() * v_scale.double().view(1, 1, -1, 1)
    return attention_oracle(q, k, v)


def oracle_rows(
    rows: Sequence[int],
    q_q: Tensor,
    k_q: Tensor,
    v_q: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
) -> Tensor:
    """The query rows ``rows`` of :func:`oracle`: float64 [batch, len(rows), num_heads, head_dim]."""
    # float32 holds every carrier's value, and torch indexes it where it does not index float8.
    q = q_q.float()[:, list(rows)].double() * q_scale.double().view(1, 1, -1, 1)
    k = k_q.double() * k_scale.double().view(1, 1, -1, 1)
    v = v_q.double() * v_scale.double().view(1, 1, -1, 1)
    return attention_oracle_rows(q, k, v, rows)
