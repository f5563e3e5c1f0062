"""``ModelNew``: grouped-query attention as one compiled kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from kernels.jit.operator import Operator, gradient_is_transformed

if TYPE_CHECKING:
    from kernels.problem import Problem

__all__ = ["DTYPES", "OPERATOR", "ModelNew", "check_arguments"]

# The dtypes the operator takes. Here and not in variants.py: a first call imports no more than it needs.
DTYPES = ("float32", "float64", "float16", "bfloat16")
TORCH_DTYPES = tuple(getattr(torch, name) for name in DTYPES)


def check_arguments(q: Any, k: Any, v: Any) -> None:
    """Raise ``TypeError`` or ``ValueError``, naming given and supported, unless the operator takes these."""
    from kernels.attention import check_shapes, check_tensors

    check_tensors({"q": q, "k": k, "v": v}, TORCH_DTYPES)
    check_shapes("q", q, "k", k, "v", v)
    num_heads, num_kv_heads = q.shape[2], k.shape[2]
    if num_heads % num_kv_heads if num_kv_heads else num_heads:
        raise ValueError(
            f"num_heads={num_heads} of q is not a multiple of num_kv_heads={num_kv_heads} of k and v; "
            f"supported: num_heads = group_size * num_kv_heads"
        )


def fake(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The operator on tensors without data: shape, dtype and the errors of :func:`check_arguments`."""
    check_arguments(q, k, v)
    return q.new_empty(q.shape)


def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    """Keep the inputs: the backward recomputes the rest."""
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k and v; memory linear in sequence length."""
    from kernels.attention import attention_backward

    return attention_backward(grad_out, *ctx.saved_tensors)


def _problem() -> Problem:
    from .problem import PROBLEM

    return PROBLEM


def has_fast_form(capability: str, dtype: str, head_dim: int) -> bool:
    """Whether variants.py has a ``fast`` kernel for such a request on a GPU of compute ``capability``."""
    return capability == "9.0" and dtype == "float32" and head_dim >= 33


def has_long_form(capability: str, dtype: str, head_dim: int) -> bool:
    """Whether variants.py has another kernel for long sequences of such requests, which is compiled apart."""
    return capability == "9.0" and dtype != "float64" and head_dim <= 32


OPERATOR = Operator(
    "gqa_attn",
    _problem,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    has_fast_form=has_fast_form,
    has_long_form=has_long_form,
)


class ModelNew(nn.Module):
    """Causal grouped-query attention: signature and answer of ``Model``, from one kernel."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """:meth:`forward` in one Python frame, while nothing but the kernel is asked for.

        ``nn.Module``'s own way here takes three, which cost as much as the operator itself.
        """
        own = self.__dict__  # half the price of as many attributes
        try:
            if not (
                own["_forward_hooks"]
                or own["_forward_pre_hooks"]
                or own["_backward_hooks"]
                or own["_backward_pre_hooks"]
                or "forward" in own
                or "_compiled_call_impl" in own
                or _global_forward_hooks
                or _global_forward_pre_hooks
                or _global_backward_hooks
                or _global_backward_pre_hooks
                or type(self).forward is not _FORWARD
                or forward_ad._current_level >= 0
                or not OPERATOR.loaded
                or is_dynamo_compiling()
            ):
                # Straight to the kernel, or None: what torch must see goes the long way.
                fast = OPERATOR.asks and OPERATOR.fp32_precision("cuda", "matmul") == "tf32"
                out = (OPERATOR.fast_direct if fast else OPERATOR.direct)(q, k, v)
                if out is not None:
                    return out
        except (RuntimeError, TypeError, AttributeError) as error:
            failure = error
        else:
            return super().__call__(q, k, v)
        return _recover(failure, q, k, v)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention, contiguous, with q's shape and dtype.

        q: [batch, seqlen_q, num_heads, head_dim]
        k, v: [batch, seqlen_k, num_kv_heads, head_dim]; num_heads a multiple of num_kv_heads
        dtype float32, float64, float16 or bfloat16; head_dim 1 to 256; any strides; CPU or CUDA.

        Where ``torch.set_float32_matmul_precision`` (or ``fp32_precision``) allows less than float32
        accuracy, float32 on Hopper has some 1.5e-3 of error for head_dim from 33, in less time.

        Raises ``TypeError`` or ``ValueError`` for other arguments, and what
        :mod:`kernels.errors` lists when the kernel cannot be built or launched.
        """
        # The one transform that would pass through a compiled operator unnoticed, with a
        # tangent of zero. (A module attribute: the public way to ask costs ten times as much.)
        if forward_ad._current_level >= 0:
            return _transformed(q, k, v)
        try:
            if is_grad_enabled() and gradient_is_transformed(q, k, v):
                return _transformed(q, k, v)
            if not OPERATOR.loaded:
                OPERATOR.load()
            fast = OPERATOR.fast_allowed()
            if is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
                call = OPERATOR.fast_differentiable if fast else OPERATOR.differentiable
            elif is_compiling():
                call = OPERATOR.fast_forward if fast else OPERATOR.forward
            else:
                call = OPERATOR.fast_forward_now if fast else OPERATOR.forward_now
            return call(q, k, v)
        except (RuntimeError, TypeError, AttributeError) as error:
            failure = error
        return _recover(failure, q, k, v)


_FORWARD = ModelNew.forward


def _transformed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The torch form, through which forward-mode derivatives and the transforms of torch.func pass."""
    from kernels.attention import attention_transformed

    check_arguments(q, k, v)
    return attention_transformed(q, k, v)


def _recover(failure: Exception, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Explain a failed call, or answer it in torch where ``KERNELS_FALLBACK=torch`` allows that."""
    from kernels.attention import attention
    from kernels.fallback import torch_form_allowed

    check_arguments(q, k, v)
    reason = OPERATOR.explain(failure, q, k, v)
    if torch_form_allowed(OPERATOR.name, reason):
        return attention(q, k, v)
    raise reason
