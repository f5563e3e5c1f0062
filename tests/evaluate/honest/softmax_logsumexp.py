"""exp of the difference to the logarithm of the sum: less exact for large logits, as anyone writes it."""

import torch
from torch import nn

REFERENCE = "level1/softmax"


class ModelNew(nn.Module):
    def forward(self, x):
        top = x.amax(dim=-1, keepdim=True)
        shifted = x - top
        return (shifted - torch.logsumexp(shifted, dim=-1, keepdim=True)).exp()
