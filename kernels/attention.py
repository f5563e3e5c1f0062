"""Causal attention in torch operations alone, shared by the attention packages.

What is here serves where a compiled kernel does not:

- :func:`attention_backward` is the gradient of every attention operator.
- :func:`attention` is the form that ``KERNELS_FALLBACK=torch`` selects.
- :func:`attention_oracle` is the float64 answer that errors are measured against,
  :func:`attention_oracle_rows` a part of it.
- :func:`check_tensors` and :func:`check_shapes` word the errors about arguments.

All take q ``[batch, seqlen_q, num_heads, head_dim]`` and k, v ``[batch, seqlen_k,
num_kv_heads, head_dim]``. Query head h reads kv head ``h // group_size``. Row t sees
keys 0..t (top-left aligned), all keys when t is past the last one, and is zero when
there are no keys at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

__all__ = [
    "MAX_HEAD_DIM",
    "attention",
    "attention_backward",
    "attention_forward",
    "attention_oracle",
    "attention_oracle_rows",
    "attention_transformed",
    "check_shapes",
    "check_tensors",
]

MAX_HEAD_DIM = 256

# Query rows a step of the forward takes. Its diagonal square is multiplied out
# elementwise (rows * rows * head_dim), so it is kept small.
FORWARD_ROWS = 32

# Query rows a step of the backward takes: rows * seqlen_k is the largest tensor.
BACKWARD_ROWS = 128

# Elements of one score tensor that the oracle holds (float64: 128 MiB).
ORACLE_ELEMENTS = 1 << 24


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are carried in: float64 for float64, float32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _heads_first(x: Tensor, num_kv_heads: int) -> Tensor:
    """[batch, time, heads, dim] to [batch, num_kv_heads, group, time, dim], in the compute dtype."""
    batch, time, num_heads, head_dim = x.shape
    # By reshape and, further down, narrow: gradcheck's vmap has no rule for flatten, unflatten and [:].
    grouped = (batch, time, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return x.to(compute_dtype(x.dtype)).reshape(grouped).permute(0, 2, 3, 1, 4)


def _rows(x: Tensor, start: int, stop: int) -> Tensor:
    """[batch, num_kv_heads, group, time, dim] to [batch, num_kv_heads, group * (stop - start), dim]."""
    batch, num_kv_heads, group_size, _, head_dim = x.shape
    count = stop - start
    return x.narrow(3, start, count).reshape(batch, num_kv_heads, group_size * count, head_dim)


def _by_group(rows: Tensor, group_size: int) -> Tensor:
    """[batch, num_kv_heads, group * time, dim] to [batch, num_kv_heads, group, time, dim]."""
    batch, num_kv_heads, count, head_dim = rows.shape
    return rows.reshape(batch, num_kv_heads, group_size, count // group_size, head_dim)


def _time_first(x: Tensor) -> Tensor:
    """[batch, num_kv_heads, group, time, dim] back to [batch, time, heads, dim]."""
    batch, num_kv_heads, group_size, time, head_dim = x.shape
    return x.permute(0, 3, 1, 2, 4).reshape(batch, time, num_kv_heads * group_size, head_dim)


def _hidden(start: int, stop: int, seen: int, group_size: int, device: torch.device) -> Tensor:
    """True where a key lies after its row: [group_size * (stop - start), seen]."""
    rows = torch.arange(start, stop, device=device)
    keys = torch.arange(seen, device=device)
    return (rows.unsqueeze(1) < keys).repeat(group_size, 1)


def attention_forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, a block of query rows at a time; the result has q's shape and dtype.

    A key that a row does not see never touches it, NaN and inf included: keys before
    the block are one matrix product, and the block's own triangle is multiplied out
    elementwise and masked after the product, because 0 * NaN is NaN.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1], k.shape[2]
    if q.numel() == 0 or seqlen_k == 0:
        return q.new_zeros(q.shape)
    group_size = num_heads // num_kv_heads
    scale = 1.0 / math.sqrt(head_dim)
    q_heads = _heads_first(q, num_kv_heads)
    k_heads = _heads_first(k, num_kv_heads).squeeze(2)
    v_heads = _heads_first(v, num_kv_heads).squeeze(2)
    blocks = []
    for start in range(0, seqlen_q, FORWARD_ROWS):
        stop = min(start + FORWARD_ROWS, seqlen_q)
        seen, common = min(stop, seqlen_k), min(start, seqlen_k)
        hidden = _hidden(start, stop, seen, group_size, q.device)
        rows = q_heads[:, :, :, start:stop].flatten(2, 3)
        scores = (rows @ k_heads[:, :, :seen].transpose(-1, -2)).mul_(scale)
        weights = torch.softmax(scores.masked_fill_(hidden, -math.inf), dim=-1)
        out = weights[..., :common] @ v_heads[:, :, :common]
        if common < seen:
            products = weights[..., common:].unsqueeze(-1) * v_heads[:, :, common:seen].unsqueeze(2)
            out += products.masked_fill_(hidden[:, common:].unsqueeze(-1), 0.0).sum(dim=3)
        blocks.append(_by_group(out, group_size))
    return _time_first(torch.cat(blocks, dim=3)).to(q.dtype).contiguous()


def attention_backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k and v, each in its tensor's shape and dtype.

    Recomputes the softmax of one block of query rows at a time over all the keys it
    sees, so memory is linear in sequence length. Every step is a differentiable torch
    operation: the gradient can be differentiated again (then memory is quadratic).

    A NaN in q, k, v or ``grad_out`` of a row reaches the gradients that the reference's
    reaches, and no other: products are masked after they are made, because 0 * NaN is
    NaN, and K and Q are cleared of NaN and inf where the weights beside them carry it
    already. (An infinite key of weight exactly 0 gives the reference's grad_q a NaN, and
    none here.)
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1], k.shape[2]
    if q.numel() == 0 or seqlen_k == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    group_size = num_heads // num_kv_heads
    scale = 1.0 / math.sqrt(head_dim)
    q_heads = _heads_first(q, num_kv_heads)
    k_heads = _heads_first(k, num_kv_heads).squeeze(2)
    v_heads = _heads_first(v, num_kv_heads).squeeze(2)
    do_heads = _heads_first(grad_out, num_kv_heads)
    k_clean = torch.nan_to_num(k_heads, nan=0.0, posinf=0.0, neginf=0.0)
    grad_q_blocks = []
    grad_k = grad_v = None
    # Counting blocks, not rows, keeps a symbolic sequence length symbolic under torch.compile.
    for block in range((seqlen_q + BACKWARD_ROWS - 1) // BACKWARD_ROWS):
        start = block * BACKWARD_ROWS
        stop = min(start + BACKWARD_ROWS, seqlen_q)
        seen = min(stop, seqlen_k)
        hidden = _hidden(start, stop, seen, group_size, q.device)
        rows = _rows(q_heads, start, stop)
        do_rows = _rows(do_heads, start, stop)
        scores = (rows @ k_heads.narrow(2, 0, seen).transpose(-1, -2)) * scale
        weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1).masked_fill(hidden, 0.0)
        grad_weights = (do_rows @ v_heads.narrow(2, 0, seen).transpose(-1, -2)).masked_fill(hidden, 0.0)
        grad_v_rows = weights.transpose(-1, -2) @ do_rows
        row_sum = (weights * grad_weights).sum(dim=-1, keepdim=True)
        grad_scores = (weights * (grad_weights - row_sum)).masked_fill(hidden, 0.0) * scale
        grad_q_rows = grad_scores @ k_clean.narrow(2, 0, seen)
        grad_q_blocks.append(_by_group(grad_q_rows, group_size))
        rows_clean = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
        grad_k_rows = grad_scores.transpose(-1, -2) @ rows_clean
        if grad_k is None or grad_v is None:
            # Made from what is added to them: under vmap, what is not batched takes in nothing batched.
            grad_k = grad_k_rows.new_zeros(k_heads.shape, dtype=k_heads.dtype)
            grad_v = grad_v_rows.new_zeros(v_heads.shape, dtype=v_heads.dtype)
        grad_k.narrow(2, 0, seen).add_(grad_k_rows)
        grad_v.narrow(2, 0, seen).add_(grad_v_rows)
    assert grad_k is not None and grad_v is not None
    grad_q = _time_first(torch.cat(grad_q_blocks, dim=3))
    return (
        grad_q.to(q.dtype),
        grad_k.transpose(1, 2).to(k.dtype),
        grad_v.transpose(1, 2).to(v.dtype),
    )


class _Attention(torch.autograd.Function):
    """Joins the blockwise forward to the blockwise backward, under the transforms of torch.func as well."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_forward(q, k, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return attention_backward(grad_out, *ctx.saved_tensors)


def attention_transformed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention through which every derivative passes: forward mode, and all of ``torch.func``.

    Memory is linear in sequence length, but quadratic in forward mode and under ``torch.compile``.
    """
    if forward_ad._current_level >= 0 or is_compiling():
        return attention_forward(q, k, v)
    return attention(q, k, v)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """:func:`attention_forward` with :func:`attention_backward` as its gradient."""
    return _Attention.apply(q, k, v)


def attention_oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The answer in float64, for finite inputs: [batch, seqlen_q, num_heads, head_dim]."""
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1], k.shape[2]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    if q.numel() == 0 or seqlen_k == 0:
        return out
    group_size = num_heads // num_kv_heads
    q_heads = q.double().transpose(1, 2)
    k_heads = k.double().transpose(1, 2).repeat_interleave(group_size, dim=1)
    v_heads = v.double().transpose(1, 2).repeat_interleave(group_size, dim=1)
    keys = torch.arange(seqlen_k, device=q.device)
    step = max(1, ORACLE_ELEMENTS // (batch * num_heads * seqlen_k))
    for start in range(0, seqlen_q, step):
        rows = torch.arange(start, min(start + step, seqlen_q), device=q.device)
        scores = q_heads[:, :, rows] @ k_heads.transpose(-1, -2) / math.sqrt(head_dim)
        scores.masked_fill_(keys > rows.unsqueeze(1), -math.inf)
        out[:, rows] = (torch.softmax(scores, dim=-1) @ v_heads).transpose(1, 2)
    return out


def attention_oracle_rows(q: Tensor, k: Tensor, v: Tensor, rows: Sequence[int]) -> Tensor:
    """Some query rows of :func:`attention_oracle`: float64 [batch, len(rows), num_heads, head_dim].

    q is [batch, len(rows), num_heads, head_dim], the queries of these rows alone; k and v
    are whole. One batch entry and kv head at a time, so the largest tensor has
    group_size * len(rows) * seqlen_k elements.
    """
    batch, _, num_heads, head_dim = q.shape
    seqlen_k, num_kv_heads = k.shape[1], k.shape[2]
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    if q.numel() == 0 or seqlen_k == 0:
        return out
    group_size = num_heads // num_kv_heads
    index = torch.tensor(rows, dtype=torch.int64, device=q.device)
    hidden = torch.arange(seqlen_k, device=q.device) > index.unsqueeze(1)
    for entry in range(batch):
        for head in range(num_kv_heads):
            group = slice(head * group_size, (head + 1) * group_size)
            queries = q[entry, :, group].double().transpose(0, 1)
            keys, values = k[entry, :, head].double(), v[entry, :, head].double()
            scores = (queries @ keys.transpose(0, 1)).div_(math.sqrt(head_dim))
            weights = torch.softmax(scores.masked_fill_(hidden, -math.inf), dim=-1)
            out[entry, :, group] = (weights @ values).transpose(0, 1)
    return out


def check_tensors(
    tensors: Mapping[str, Any],
    dtypes: Sequence[torch.dtype],
    devices: Sequence[str] = ("cpu", "cuda", "meta"),
) -> None:
    """Raise unless every argument is a dense tensor of one supported dtype on one supported device.

    ``tensors`` maps argument names to what was passed. Raises ``TypeError`` for what is
    not a dense tensor and for dtypes, ``ValueError`` for devices.
    """
    names = ", ".join(tensors)
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor; given {type(x).__name__}")
        if x.layout != torch.strided or x.is_nested:
            layout = "a nested tensor" if x.is_nested else f"layout {x.layout}"
            raise TypeError(f"{name} has {layout}; supported: torch.strided")
    given = {name: x.dtype for name, x in tensors.items()}
    for name, dtype in given.items():
        if dtype not in dtypes:
            supported = ", ".join(str(d) for d in dtypes)
            raise TypeError(f"{name} has dtype {dtype}; supported: {supported}")
    if len(set(given.values())) > 1:
        words = ", ".join(f"{name} {dtype}" for name, dtype in given.items())
        raise TypeError(f"{names} must have one dtype; given {words}")
    check_devices(tensors, devices)


def check_devices(tensors: Mapping[str, Tensor], devices: Sequence[str] = ("cpu", "cuda", "meta")) -> None:
    """Raise ``ValueError`` unless all tensors are on one device of a supported type."""
    if len({x.device for x in tensors.values()}) > 1:
        words = ", ".join(f"{name} on {x.device}" for name, x in tensors.items())
        raise ValueError(f"all arguments must be on one device; given {words}")
    for name, x in tensors.items():
        if x.device.type not in devices:
            raise ValueError(f"{name} is on {x.device}; supported devices: {', '.join(devices)}")


def check_shapes(q_name: str, q: Tensor, k_name: str, k: Tensor, v_name: str, v: Tensor) -> None:
    """Raise ``ValueError`` unless q, k and v are the 4-D shapes of one attention problem."""
    for name, x in ((q_name, q), (k_name, k), (v_name, v)):
        if x.dim() != 4:
            raise ValueError(
                f"{name} must be 4-D [batch, seqlen, num_heads, head_dim]; given {x.dim()}-D {_shape(x)}"
            )
    if k.shape != v.shape:
        raise ValueError(
            f"{k_name} and {v_name} must have one shape; given {k_name} {_shape(k)}, {v_name} {_shape(v)}"
        )
    if q.shape[0] != k.shape[0]:
        raise ValueError(
            f"{q_name} and {k_name} must have one batch size; "
            f"given {q_name} {_shape(q)}, {k_name} {_shape(k)}"
        )
    if q.shape[3] != k.shape[3]:
        raise ValueError(
            f"{q_name} and {k_name} must have one head_dim; given {q_name} {_shape(q)}, {k_name} {_shape(k)}"
        )
    if not 1 <= q.shape[3] <= MAX_HEAD_DIM:
        # Of tensors without data this is no device that anything runs on.
        where = "" if q.device.type == "meta" else f" on {q.device.type.upper()}"
        raise ValueError(f"head_dim={q.shape[3]} is not supported{where}; supported: 1 to {MAX_HEAD_DIM}")


def _shape(x: Tensor) -> str:
    return str(tuple(x.shape))
