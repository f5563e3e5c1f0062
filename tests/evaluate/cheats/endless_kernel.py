"""Starts a kernel that never ends, so that the call returns and nothing after it does.

Only the driver can stop it, when the process is killed.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cuda",)
CAUGHT_BY = ("call",)
DISTURBS = True


class ModelNew(nn.Module):
    def forward(self, x):
        torch.cuda._sleep(1 << 62)
        return torch.softmax(x, dim=-1)
