"""``ModelNew``: attention over low-precision operands as one compiled kernel."""

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

# The carriers the operator takes. Here and not in variants.py: a first call imports no more than it needs.
DTYPES = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32")
TORCH_DTYPES = tuple(getattr(torch, name) for name in DTYPES)


def check_arguments(q_q: Any, k_q: Any, v_q: Any, q_scale: Any, k_scale: Any, v_scale: Any) -> None:
    """Raise ``TypeError`` or ``ValueError``, naming given and supported, unless the operator takes these."""
    from kernels.attention import check_devices, check_shapes, check_tensors

    carriers = {"q_q": q_q, "k_q": k_q, "v_q": v_q}
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    check_tensors(carriers, TORCH_DTYPES)
    check_tensors(scales, (torch.float32,))
    check_devices({**carriers, **scales})
    check_shapes("q_q", q_q, "k_q", k_q, "v_q", v_q)
    num_heads = q_q.shape[2]
    if k_q.shape[2] != num_heads:
        raise ValueError(
            f"q_q, k_q and v_q must have one num_heads; given {num_heads} of q_q, "
            f"{k_q.shape[2]} of k_q and v_q"
        )
    for name, scale in scales.items():
        if scale.dim() != 1 or scale.shape[0] != num_heads:
            raise ValueError(f"{name} must be [num_heads] = ({num_heads},); given {tuple(scale.shape)}")


def fake(q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor) -> Tensor:
    """The operator on tensors without data: shape, dtype and the errors of :func:`check_arguments`."""
    check_arguments(q_q, k_q, v_q, q_scale, k_scale, v_scale)
    return q_q.new_empty(q_q.shape, dtype=torch.float32)


def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Keep the inputs as they are stored: the backward dequantises and recomputes."""
    ctx.save_for_backward(*inputs)


def dequantise(x: Tensor, scale: Tensor) -> Tensor:
    """What an operand means: float32, shaped as x."""
    return x.float() * scale.view(1, 1, -1, 1)


def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients for float carriers, in their dtype, and for the scales; memory linear in sequence length."""
    from kernels.attention import attention_backward

    saved = ctx.saved_tensors  # read once: under activation checkpointing a second read is an error
    carriers, scales = saved[:3], saved[3:]
    operands = [dequantise(x, scale) for x, scale in zip(carriers, scales, strict=True)]
    grads = attention_backward(grad_out, *operands)
    wanted = ctx.needs_input_grad
    grad_carriers = [
        (grad * scale.view(1, 1, -1, 1)).to(x.dtype) if want else None
        for want, grad, x, scale in zip(wanted[:3], grads, carriers, scales, strict=True)
    ]
    grad_scales = [
        (grad * x.float()).sum(dim=(0, 1, 3)) if want else None
        for want, grad, x in zip(wanted[3:], grads, carriers, strict=True)
    ]
    return (*grad_carriers, *grad_scales)


def _problem() -> Problem:
    from .problem import PROBLEM

    return PROBLEM


def has_fast_form(capability: str, dtype: str, head_dim: int) -> bool:
    """Whether variants.py has a ``fast`` kernel for such a request on a GPU of compute ``capability``."""
    return capability == "9.0" and head_dim >= 33


def has_long_form(capability: str, dtype: str, head_dim: int) -> bool:
    """Whether variants.py has another kernel for long sequences of such requests, which is compiled apart."""
    return capability == "9.0" and head_dim <= 32


OPERATOR = Operator(
    "fp8_attn",
    _problem,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    has_fast_form=has_fast_form,
    has_long_form=has_long_form,
)


class ModelNew(nn.Module):
    """Causal attention over low-precision operands: signature and answer of ``Model``, from one kernel."""

    def __call__(
        self, q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
    ) -> Tensor:
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
                out = (OPERATOR.fast_direct if fast else OPERATOR.direct)(
                    q_q, k_q, v_q, q_scale, k_scale, v_scale
                )
                if out is not None:
                    return out
        except (RuntimeError, TypeError, AttributeError) as error:
            failure = error
        else:
            return super().__call__(q_q, k_q, v_q, q_scale, k_scale, v_scale)
        return _recover(failure, q_q, k_q, v_q, q_scale, k_scale, v_scale)

    def forward(
        self, q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
    ) -> Tensor:
        """Return attention as contiguous float32, shaped as ``q_q``.

        q_q: [batch, seqlen, num_heads, head_dim]; k_q, v_q: the same, of one sequence length of their own
        one dtype of int8, uint8, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32
        q_scale, k_scale, v_scale: float32 [num_heads]; an operand means ``x.float() * scale``
        head_dim 1 to 256; any strides; CPU or CUDA. No dequantised copy is made.

        Where ``torch.set_float32_matmul_precision`` (or ``fp32_precision``) allows less than float32
        accuracy, the result on Hopper has some 5e-4 of error for head_dim from 33, in less time.

        Raises ``TypeError`` or ``ValueError`` for other arguments, and what
        :mod:`kernels.errors` lists when the kernel cannot be built or launched.
        """
        # The one transform that would pass through a compiled operator unnoticed, with a
        # tangent of zero. (A module attribute: the public way to ask costs ten times as much.)
        if forward_ad._current_level >= 0:
            return _transformed(q_q, k_q, v_q, q_scale, k_scale, v_scale)
        try:
            if is_grad_enabled() and gradient_is_transformed(q_q, k_q, v_q, q_scale, k_scale, v_scale):
                return _transformed(q_q, k_q, v_q, q_scale, k_scale, v_scale)
            if not OPERATOR.loaded:
                OPERATOR.load()
            fast = OPERATOR.fast_allowed()
            if is_grad_enabled() and (
                q_scale.requires_grad
                or k_scale.requires_grad
                or v_scale.requires_grad
                or q_q.requires_grad
                or k_q.requires_grad
                or v_q.requires_grad
            ):
                call = OPERATOR.fast_differentiable if fast else OPERATOR.differentiable
            elif is_compiling():
                call = OPERATOR.fast_forward if fast else OPERATOR.forward
            else:
                call = OPERATOR.fast_forward_now if fast else OPERATOR.forward_now
            return call(q_q, k_q, v_q, q_scale, k_scale, v_scale)
        except (RuntimeError, TypeError, AttributeError) as error:
            failure = error
        return _recover(failure, q_q, k_q, v_q, q_scale, k_scale, v_scale)


_FORWARD = ModelNew.forward


def _transformed(
    q_q: Tensor, k_q: Tensor, v_q: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor
) -> Tensor:
    """The torch form, through which forward-mode derivatives and the transforms of torch.func pass."""
    from kernels.attention import attention_transformed

    check_arguments(q_q, k_q, v_q, q_scale, k_scale, v_scale)
    return attention_transformed(dequantise(q_q, q_scale), dequantise(k_q, k_scale), dequantise(v_q, v_scale))


def _recover(
    failure: Exception,
    q_q: Tensor,
    k_q: Tensor,
    v_q: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
) -> Tensor:
    """Explain a failed call, or answer it in torch where ``KERNELS_FALLBACK=torch`` allows that."""
    from kernels.attention import attention
    from kernels.fallback import torch_form_allowed

    check_arguments(q_q, k_q, v_q, q_scale, k_scale, v_scale)
    reason = OPERATOR.explain(failure, q_q, k_q, v_q, q_scale, k_scale, v_scale)
    if torch_form_allowed(OPERATOR.name, reason):
        return attention(dequantise(q_q, q_scale), dequantise(k_q, k_scale), dequantise(v_q, v_scale))
    raise reason
