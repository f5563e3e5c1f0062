"""The same values in awkward memory: inputs on which strides, offsets and padding are told apart.

Each layout takes q, k and v, contiguous ``[batch, seqlen, heads, head_dim]``, and returns
views with the same values (``expanded`` alone changes them). Elements that belong to the
buffer and not to the view are NaN, or the largest value an integer type holds: a kernel
that reads them shows it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["LAYOUTS", "apply_layout"]

_Views = tuple[Tensor, Tensor, Tensor]


def _garbage(shape: list[int], like: Tensor) -> Tensor:
    """A buffer of ``shape`` full of values that must never be read."""
    value = float("nan") if like.dtype.is_floating_point else torch.iinfo(like.dtype).max
    # float8 types have no fill of their own on every torch: fill in float32, then convert.
    work = torch.float32 if like.dtype.is_floating_point else like.dtype
    return torch.full(shape, value, dtype=work, device=like.device).to(like.dtype)


def _transposed(x: Tensor) -> Tensor:
    """Stored [batch, heads, seqlen, head_dim]."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _head_dim_first(x: Tensor) -> Tensor:
    """Stored [head_dim, batch, seqlen, heads]: the innermost index has the largest stride."""
    return x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)


def _every_other(x: Tensor) -> Tensor:
    """Innermost stride 2, garbage in between."""
    buffer = _garbage([*x.shape[:3], 2 * x.shape[3]], x)
    view = buffer[..., ::2]
    view.copy_(x)
    return view


def _offset(x: Tensor) -> Tensor:
    """Begins one element into its buffer: no vector load is aligned."""
    buffer = _garbage([x.numel() + 2], x)
    view = buffer[1 : 1 + x.numel()].view(x.shape)
    view.copy_(x)
    return view


def _padded(x: Tensor) -> Tensor:
    """A window of a longer buffer: garbage before the first and beyond the last time step."""
    before, after = 3, 70
    buffer = _garbage([x.shape[0], before + x.shape[1] + after, *x.shape[2:]], x)
    view = buffer[:, before : before + x.shape[1]]
    view.copy_(x)
    return view


def _each(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], _Views]:
    return lambda q, k, v: (change(q), change(k), change(v))


def _v_transposed(q: Tensor, k: Tensor, v: Tensor) -> _Views:
    """Only V is strided: a kernel that takes K's strides for V shows it."""
    return q, k, _transposed(v)


def _packed(q: Tensor, k: Tensor, v: Tensor) -> _Views:
    """Slices of one projection, [batch, seqlen, all heads, head_dim]; needs one sequence length."""
    packed = torch.cat([q, k, v], dim=2)
    first, second = q.shape[2], q.shape[2] + k.shape[2]
    return packed[:, :, :first], packed[:, :, first:second], packed[:, :, second:]


def _expanded(q: Tensor, k: Tensor, v: Tensor) -> _Views:
    """Zero strides: q along the batch, k along the heads, v along time."""
    return q[:1].expand(q.shape), k[:, :, :1].expand(k.shape), v[:, :1].expand(v.shape)


LAYOUTS: dict[str, Callable[[Tensor, Tensor, Tensor], _Views]] = {
    "contiguous": lambda q, k, v: (q, k, v),
    "transposed": _each(_transposed),
    "v_transposed": _v_transposed,
    "head_dim_first": _each(_head_dim_first),
    "every_other": _each(_every_other),
    "offset": _each(_offset),
    "padded": _each(_padded),
    "packed": _packed,
    "expanded": _expanded,
}


def apply_layout(layout: str, q: Tensor, k: Tensor, v: Tensor) -> _Views:
    """Return q, k and v as views in ``layout``; raises ``ValueError`` for a name not in :data:`LAYOUTS`."""
    if layout not in LAYOUTS:
        raise ValueError(f"no layout {layout!r}; there are: {', '.join(LAYOUTS)}")
    return LAYOUTS[layout](q, k, v)
