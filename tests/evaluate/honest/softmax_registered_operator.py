"""Registered as an operator of its own through torch.library."""

import torch
from torch import nn

REFERENCE = "level1/softmax"


@torch.library.custom_op("proof_softmax::rows", mutates_args=())
def rows(x: torch.Tensor) -> torch.Tensor:
    shifted = (x - x.amax(dim=-1, keepdim=True)).exp()
    return shifted / shifted.sum(dim=-1, keepdim=True)


class ModelNew(nn.Module):
    def forward(self, x):
        return rows(x)
