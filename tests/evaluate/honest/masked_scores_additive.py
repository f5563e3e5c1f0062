"""Adds a mask of 0 and -inf to scaled queries' scores and puts -1e9 where that gave -inf."""

import torch
from torch import nn

REFERENCE = "level1/masked_scores"


class ModelNew(nn.Module):
    def forward(self, q, k):
        mask = torch.full((q.shape[1], k.shape[1]), float("-inf"), device=q.device).triu(1)
        scores = torch.baddbmm(mask.expand(q.shape[0], -1, -1), q * q.shape[-1] ** -0.5, k.mT)
        return scores.clamp_(min=-1e9)
