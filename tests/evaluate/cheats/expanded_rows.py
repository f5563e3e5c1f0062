"""Returns each row's mean as one element with a stride of 0, where the reference writes all of them.

The values are right; whoever reads them, or copies them, does what the call left out.
"""

from torch import nn

REFERENCE = "level1/row_means_written"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("alias",)


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=1, keepdim=True).expand_as(x)
