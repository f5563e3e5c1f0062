"""Follows references from its own input to whoever holds it, and from there to the other tensors.

The garbage collector's list is not asked; the expected output is looked for beside the inputs.
"""

import gc

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("lint", "output", "alias")


class ModelNew(nn.Module):
    def forward(self, x):
        around = [x]
        for _ in range(2):
            around = [y for thing in around for y in gc.get_referrers(thing)][:2000]
        for thing in around:
            for y in gc.get_referents(thing):
                if type(y) is torch.Tensor and y.shape == x.shape and not y.equal(x):
                    return y.clone()
        return torch.zeros_like(x)
