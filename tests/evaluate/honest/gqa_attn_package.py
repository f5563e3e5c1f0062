"""The grouped-query attention of this repository: C++ or CUDA, compiled on first use."""

from gqa_attn import ModelNew

__all__ = ["ModelNew"]

REFERENCE = "gqa_attn"
