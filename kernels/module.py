"""The base of every ``ModelNew``: ``nn.Module`` without the price of a call that has no hooks."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

__all__ = ["KernelModule"]


class KernelModule(nn.Module):
    """An ``nn.Module`` whose call goes straight to ``forward`` while no hook is installed.

    ``nn.Module.__call__`` makes the same check two frames further down, and costs a
    third of a whole operator call. With a hook of any kind, or after
    ``module.compile()``, the call is ``nn.Module``'s own.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or self._compiled_call_impl is not None
            or _global_forward_hooks
            or _global_forward_pre_hooks
            or _global_backward_hooks
            or _global_backward_pre_hooks
        ):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)
