"""When a problem package may answer in plain torch: ``KERNELS_FALLBACK=torch`` and no compiler to be had."""

from __future__ import annotations

import sys
import warnings

from kernels.errors import ToolchainError
from kernels.variables import value_of

__all__ = ["torch_form_allowed"]

_warned: set[str] = set()


def torch_form_allowed(problem: str, failure: BaseException) -> bool:
    """Whether ``failure`` of ``problem`` may be answered by its torch form; warns the first time it may.

    Only a missing or unfit tool counts: a kernel that does not compile is a bug to see.
    """
    if not isinstance(failure, ToolchainError) or value_of("KERNELS_FALLBACK", "torch") != "torch":
        return False
    if problem not in _warned:
        _warned.add(problem)
        warnings.warn(
            f"{problem} runs its slow torch form (KERNELS_FALLBACK=torch): {failure}",
            RuntimeWarning,
            stacklevel=_callers_level(problem),
        )
    return True


def _callers_level(problem: str) -> int:
    """The ``stacklevel`` that points a warning at the module's caller: past us, ``problem`` and torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "kernels",
        "torch",
        problem,
    ):
        level, frame = level + 1, frame.f_back
    return level
