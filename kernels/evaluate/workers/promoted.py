"""The float64 form of a reference that says float32 in its own text: there it means float64 too.

``x.float()``, ``softmax(x, dtype=torch.float32)`` and ``torch.zeros(n)`` would make a float32 computation
of what is given in float64, and what float32 loses would then be taken for the exact answer. Shorter
dtypes stay: a reference that asks for bfloat16 means its rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Float32Inside", "Mode", "promoted"]

_LONGER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_BITS = torch.ops.aten.view.dtype


class Float32Inside(Exception):
    """An operation computes in float32 whatever it is given, or takes a float for its bits."""


@contextlib.contextmanager
def promoted() -> Iterator[None]:
    """What is computed inside is computed in float64 where it would be in float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(_LONGER.get(before, before))
    try:
        with _Promoted():
            yield
    finally:
        torch.set_default_dtype(before)


class Mode(TorchDispatchMode):
    """A mode that torch does not wrap for its compiler, which it would import at the first use: seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Promoted(Mode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _BITS:
            if args[0].is_floating_point():
                raise Float32Inside("it looks at the bits of a float")
            return func(*args, **kwargs)
        if kwargs.get("dtype") in _LONGER:
            kwargs = {**kwargs, "dtype": _LONGER[kwargs["dtype"]]}
        # Views of float32 lose nothing, and what is written into stays what it is.
        if not func.is_view:
            args = [_longer(one) if _is_read(func, i) else one for i, one in enumerate(args)]
        result = func(*args, **kwargs)
        if not func.is_view and any(_is_short(leaf) for leaf in tree_leaves(result)):
            raise Float32Inside(f"{func} returns float32")
        return result


def _longer(value: Any) -> Any:
    """``value`` in float64: a tensor, a dtype, or a list of tensors."""
    if _is_short(value):
        return value.to(_LONGER[value.dtype])
    if isinstance(value, torch.dtype):
        return _LONGER.get(value, value)
    if isinstance(value, (list, tuple)) and any(_is_short(one) for one in value):
        return [_longer(one) for one in value]
    return value


def _is_read(func: Any, place: int) -> bool:
    """Whether ``func`` reads its argument number ``place`` alone."""
    if not func._schema.is_mutable:
        return True
    alias = func._schema.arguments[place].alias_info
    return alias is None or not alias.is_write


def _is_short(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _LONGER
