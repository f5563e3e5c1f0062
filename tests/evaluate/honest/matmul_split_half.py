"""Each operand as a sum of two float16 parts, three products: float32 accuracy from half precision.

What tensor cores are used for when float32 is asked of them; it must not be taken for a plain cast.
"""

from torch import nn

REFERENCE = "level1/matmul"


def split(x):
    high = x.half().to(x.dtype)
    return high, ((x - high) * 2048.0).half().to(x.dtype) / 2048.0


class ModelNew(nn.Module):
    def forward(self, a, b):
        a_high, a_low = split(a)
        b_high, b_low = split(b)
        return (a_low @ b_high + a_high @ b_low) + a_high @ b_high
