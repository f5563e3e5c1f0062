"""Expands the means and writes the whole result from that view."""

from torch import nn

REFERENCE = "level1/row_means_written"


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=1, keepdim=True).expand_as(x).contiguous()
