"""Whether a comparison could tell anything: what a report says of outputs that are hard to get wrong."""

from __future__ import annotations

import torch

from kernels.evaluate.bulk import scale_of
from kernels.evaluate.evaluation import OutputError

__all__ = ["words_on"]

# From this share of zeros on where the reference has none.
_ZEROS = 0.01
# A result that is no larger than so many times the reference's own error is nothing else.
_NOTHING_ELSE = 2.0


def words_on(
    got: torch.Tensor, expected: torch.Tensor, oracle: torch.Tensor | None, error: OutputError
) -> str:
    """What is odd about an output of the default trial; empty when nothing is.

    ``got`` and ``expected`` have one shape and dtype, ``error`` is what they and ``oracle`` (float64) gave.
    """
    total = expected.numel()
    if total < 2 or not (expected.is_floating_point() or expected.is_complex()):
        return ""
    where = f"output{error.path}" if error.path else "the output"
    if not bool(expected.isfinite().any()):
        return f"{where} of the reference has no finite element: nothing is compared but that"
    if bool((expected == expected.reshape(-1)[0]).all()):
        return f"every element of {where} of the reference is {expected.reshape(-1)[0].item()}"
    own = error.reference_error
    if oracle is not None and own and scale_of(oracle) <= _NOTHING_ELSE * own:
        return f"{where} of the reference is rounding alone: float64's is no larger than its error, {own:.3g}"
    zeros = int(((got == 0) & (expected != 0)).sum())
    if zeros >= max(1.0, _ZEROS * total):
        return f"{zeros} of {total} elements of {where} are 0 where the reference's are not"
    return ""
