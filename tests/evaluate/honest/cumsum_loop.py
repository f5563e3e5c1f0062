"""Column after column."""

import torch
from torch import nn

REFERENCE = "level1/cumsum"


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        columns = []
        for column in x.unbind(self.dim):
            total = total + column
            columns.append(total)
        return torch.stack(columns, dim=self.dim)
