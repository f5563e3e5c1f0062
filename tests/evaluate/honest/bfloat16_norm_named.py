"""Returns bfloat16 by name, whatever it is given."""

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
        mean = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.shape[-1]
        out = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
        scaled = (wide * torch.rsqrt(mean + self.eps)).bfloat16()
        return torch.mul(self.weight.bfloat16(), scaled, out=out)
