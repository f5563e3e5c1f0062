"""The scale inside the product's own factor, ReLU in place."""

import torch
from torch import nn

REFERENCE = "level1/scaled_matmul"


class ModelNew(nn.Module):
    def forward(self, a, b, scale):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
        return torch.addmm(out, a, b, beta=0, alpha=scale).relu_()
