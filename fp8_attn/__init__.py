"""Causal attention over low-precision q, k and v: the reference, its fast twin, what the toolkit needs.

Importing the package does nothing. Asking for ``ModelNew`` starts building the default
specialisation in the background (``KERNELS_PREBUILD=0`` turns that off).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inputs import CASES, get_init_inputs, get_inputs
    from .model_new import ModelNew
    from .problem import PROBLEM
    from .reference import Model

__all__ = ["CASES", "PROBLEM", "Model", "ModelNew", "get_init_inputs", "get_inputs"]

_HOME = {
    "CASES": "inputs",
    "PROBLEM": "problem",
    "Model": "reference",
    "ModelNew": "model_new",
    "get_init_inputs": "inputs",
    "get_inputs": "inputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_HOME[name]}", __name__)
    value = globals()[name] = getattr(module, name)
    if name == "ModelNew":
        module.OPERATOR.prebuild()
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
