"""Writes far outside its tensors on the device.

The error is sticky: every later CUDA call of the process fails, and a harness in it is lost.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cuda",)
CAUGHT_BY = ("call", "output")


class ModelNew(nn.Module):
    def forward(self, x):
        far = torch.full((1024,), 1 << 40, device=x.device, dtype=torch.int64)
        torch.as_strided(x, (1,), (1,))
        out = torch.softmax(x, dim=-1)
        out.view(-1).index_fill_(0, far, 0.0)
        return out
