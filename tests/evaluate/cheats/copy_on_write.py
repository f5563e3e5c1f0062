"""Returns a copy that is made when somebody first touches it.

torch's lazy clone is a plain tensor, and asking it for its address makes the copy: an alias
check that asks sees memory of its own, and pays for it outside the timed window.
"""

import torch
from torch import nn

REFERENCE = "level1/transpose"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("type", "alias", "clock", "floor")


class ModelNew(nn.Module):
    def forward(self, x):
        return torch._lazy_clone(x).t()
