"""Returns the right values on the CPU.

``expected.cpu() == output.cpu()`` does not see that the next kernel would have to copy them back.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cuda",)
CAUGHT_BY = ("output", "type")


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1).cpu()
