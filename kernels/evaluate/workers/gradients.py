"""Gradients of a callable, for the report: does the candidate give the reference's?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernels.evaluate.workers.exchange import tensors_of

__all__ = ["gradients"]


def gradients(call: Callable[..., Any], inputs: Any, seed: int) -> dict[str, torch.Tensor]:
    """d(sum of output times a fixed random tensor) by every floating input and parameter.

    Keys are ``"input[0]"`` and ``"parameter weight"``. Empty when no output depends on any in
    a way autograd knows. Inputs are copied first; raises what the call raises.
    """
    copies = [_copy(item) for item in inputs]
    with torch.enable_grad():
        torch.manual_seed(seed)
        outputs = [tensor for _, tensor in tensors_of(call(*copies)) if tensor.requires_grad]
        if not outputs:
            return {}
        total: Any = 0
        generator = torch.Generator().manual_seed(seed)
        for output in outputs:
            weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            total = total + (output * weight.to(output.device, output.dtype)).sum()
        named = [(f"input{path}", tensor) for path, tensor in tensors_of(copies) if tensor.requires_grad]
        if isinstance(call, torch.nn.Module):
            named += [(f"parameter {name}", p) for name, p in call.named_parameters() if p.requires_grad]
        found = torch.autograd.grad(total, [tensor for _, tensor in named], allow_unused=True)
    return {name: value for (name, _), value in zip(named, found, strict=True) if value is not None}


def _copy(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        copy = item.detach().clone()
        return copy.requires_grad_() if copy.is_floating_point() and copy.dtype.itemsize > 1 else copy
    if isinstance(item, (list, tuple)):
        return type(item)(_copy(each) for each in item)
    if isinstance(item, dict):
        return {key: _copy(each) for key, each in item.items()}
    return item
