"""kernelwright: a JIT kernel toolkit for PyTorch.

Importing this package imports neither torch nor CUDA and builds nothing. The
toolkit's parts are its sub-modules (``kernels.jit``, ``kernels.toolchain``, ...);
``python -m kernels`` is its command line.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "Case",
    "KernelsError",
    "Problem",
    "Request",
    "Tolerance",
    "Variant",
    "__version__",
    "find_problem",
]

# Below 0.9 on purpose: other libraries probe a distribution that is imported by
# this same name, and compare its version with their own window.
__version__ = "0.1.0"

_LAZY = {
    "Case": "kernels.problem",
    "KernelsError": "kernels.errors",
    "Problem": "kernels.problem",
    "Request": "kernels.problem",
    "Tolerance": "kernels.problem",
    "Variant": "kernels.problem",
    "find_problem": "kernels.problem",
}


# What people import from Hugging Face's package of the same import name.
_OTHER_PACKAGE = frozenset(
    "get_kernel get_local_kernel get_locked_kernel load_kernel has_kernel install_kernel kernelize "
    "use_kernel_forward_from_hub use_kernel_func_from_hub use_kernel_mapping register_kernel_mapping "
    "replace_kernel_forward_from_hub Device LayerRepository LocalLayerRepository LockedLayerRepository "
    "FuncRepository Mode CUDAProperties".split()
)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    clash = (
        f"module 'kernels' is kernelwright {__version__} ({__file__}) and has no {name!r}; "
        "Hugging Face's package of the same import name needs an environment of its own"
    )
    # `from kernels import get_kernel` turns an AttributeError into words of its own, so
    # for those names the ImportError that probing code expects is raised here.
    if name in _OTHER_PACKAGE:
        raise ImportError(clash, name="kernels", path=__file__)
    raise AttributeError(clash)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
