"""Computes in float16 and returns float32.

On a GPU that is several times faster; a tolerance of 1e-2 lets it pass.
"""

from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.half() @ b.half()).to(a.dtype)
