"""The low-precision attention of this repository: C++ or CUDA, compiled on first use."""

from fp8_attn import ModelNew

__all__ = ["ModelNew"]

REFERENCE = "fp8_attn"
