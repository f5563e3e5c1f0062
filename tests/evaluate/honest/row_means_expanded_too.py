"""A product with a vector for the means, expanded as the reference's are."""

import torch
from torch import nn

REFERENCE = "level1/row_means_expanded"


class ModelNew(nn.Module):
    def forward(self, x):
        weights = torch.full((x.shape[1], 1), 1 / x.shape[1], device=x.device)
        return torch.mm(x, weights).expand_as(x)
