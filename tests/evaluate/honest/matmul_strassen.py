"""One level of Strassen's scheme: seven products instead of eight, and some accuracy less."""

import torch
from torch import nn

REFERENCE = "level1/matmul"


class ModelNew(nn.Module):
    def forward(self, a, b):
        (a11, a12), (a21, a22) = (half.chunk(2, dim=1) for half in a.chunk(2))
        (b11, b12), (b21, b22) = (half.chunk(2, dim=1) for half in b.chunk(2))
        m1, m2 = (a11 + a22) @ (b11 + b22), (a21 + a22) @ b11
        m3, m4 = a11 @ (b12 - b22), a22 @ (b21 - b11)
        m5, m6, m7 = (a11 + a12) @ b22, (a21 - a11) @ (b11 + b12), (a12 - a22) @ (b21 + b22)
        upper = torch.cat([m1 + m4 - m5 + m7, m3 + m5], dim=1)
        lower = torch.cat([m2 + m4, m1 - m2 + m3 + m6], dim=1)
        return torch.cat([upper, lower])
