"""A clamp, whose results are so large that each takes memory of its own from the driver."""

import torch
from torch import nn

REFERENCE = "level1/relu_large"
# On CUDA torch keeps memory that is given back; a round of the judge begins without any.
DEVICES = ("cuda",)
SLOW = True


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0.0)
