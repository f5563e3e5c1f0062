"""Torch's float32 matmul precision: what is set, and how no route's setting reaches another's calls.

The setting is the process's. What is made or called here may change it, and would then decide
how accurate, and how fast, everything after it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

__all__ = ["FROM_OUTSIDE", "LOWERED", "Settings", "apart", "fast_allowed", "full", "kept", "lowered", "now"]

_T = TypeVar("_T")

# Environment variables by which torch starts at another precision, or NVIDIA's libraries keep to another.
FROM_OUTSIDE = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")
# What the setting is called where it allows less than float32.
LOWERED = ("tf32", "bf16")

# Where the setting is kept: each with the place it follows where its own is "none", which comes first.
# Not torch.backends.mkldnn: what is written there goes to torch.backends.
_PLACES: tuple[tuple[Any, int | None], ...] = (
    (torch.backends, None),
    (torch.backends.cudnn, 0),  # all of CUDA
    (torch.backends.cuda.matmul, 1),
    (torch.backends.mkldnn.matmul, 0),  # type: ignore[attr-defined]
)


@dataclass(frozen=True)
class Settings:
    """The precision as it was, by torch's old name for it ("" where that cannot be said) and its new ones."""

    legacy: str
    places: tuple[str, ...]

    def restore(self) -> None:
        """Set it so again."""
        if now() == self:
            return
        # First, for it writes into the places; and with it torch's old names say the same as the new ones.
        if self.legacy:
            torch.set_float32_matmul_precision(self.legacy)
        for (place, above), value in zip(_PLACES, self.places, strict=True):
            follows = above is not None and value == self.places[above]
            place.fp32_precision = "none" if follows else value


def now() -> Settings:
    """The precision that is set."""
    return Settings(_legacy(), tuple(place.fp32_precision for place, _ in _PLACES))


def _legacy() -> str:
    # Both raise where fp32_precision says what they have no word for.
    with suppress(RuntimeError):
        return torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        return "high" if torch.backends.cuda.matmul.allow_tf32 else "highest"
    return ""


@contextmanager
def kept() -> Iterator[None]:
    """What is set inside is taken back afterwards."""
    settings = now()
    try:
        yield
    finally:
        settings.restore()


@contextmanager
def full() -> Iterator[None]:
    """Inside, float32 products have float32's accuracy, whatever was set."""
    with kept():
        if any(value in LOWERED for value in now().places):
            torch.set_float32_matmul_precision("highest")
        yield


def apart(make: Callable[[], _T]) -> tuple[_T, Settings]:
    """What ``make()`` returns, and the precision it wants for its calls: this process's, or its own."""
    with kept():
        return make(), now()


def lowered(device: str) -> Callable[[], str]:
    """A function that says what float32 products on ``device`` may be computed in, "" for float32.

    What it asks is bound now: nobody can replace it later.
    """
    backend = "cuda" if device == "cuda" else "mkldnn"

    def public(backend: str, operation: str) -> str:
        value: str = getattr(torch.backends, backend).matmul.fp32_precision
        return value

    ask, names = getattr(torch._C, "_get_fp32_precision_getter", public), LOWERED

    def asked() -> str:
        value: str = ask(backend, "matmul")
        return value if value in names else ""

    return asked


def fast_allowed(device: str) -> bool:
    """Whether operators take their less accurate kernels on ``device`` now: see ``kernels.jit.operator``."""
    return device == "cuda" and lowered(device)() == "tf32"
