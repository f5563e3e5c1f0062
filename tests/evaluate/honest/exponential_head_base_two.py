"""The same exponentials by exp2, of logits that are scaled in the product: other elements may overflow."""

import math

import torch
from torch import nn

REFERENCE = "level2/exponential_head"
SHARPNESS = 40.0


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        scale = SHARPNESS / math.log(2.0)
        logits = torch.addmm(self.linear.bias, x, self.linear.weight.t(), beta=scale, alpha=scale)
        return torch.exp2(logits)
