"""Maximum, exponential, sum, division, each in place in one buffer."""

from torch import nn

REFERENCE = "level1/softmax"


class ModelNew(nn.Module):
    def forward(self, x):
        out = x - x.amax(dim=-1, keepdim=True)
        out.exp_()
        return out.div_(out.sum(dim=-1, keepdim=True))
