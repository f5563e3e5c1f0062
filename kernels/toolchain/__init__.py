"""Finds what a build needs: a C++ compiler, ninja, and a CUDA toolkit that fits torch.

``cxx`` and ``cuda`` find them, ``asking`` remembers what they said of themselves, and
``doctor`` checks them by trying. Nothing here imports torch at module level, and nothing
spawns a process unless asked for a version that is not remembered.
"""

from kernels.toolchain.cuda import CudaToolkit, find_cuda, torch_cuda_major
from kernels.toolchain.cxx import Compiler, find_cxx, find_ninja
from kernels.toolchain.doctor import Check, diagnose

__all__ = [
    "Check",
    "Compiler",
    "CudaToolkit",
    "diagnose",
    "find_cuda",
    "find_cxx",
    "find_ninja",
    "torch_cuda_major",
]
