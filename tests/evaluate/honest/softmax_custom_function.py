"""The forward inside an autograd function with its own backward."""

import torch
from torch import nn

REFERENCE = "level1/softmax"


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x - x.amax(dim=-1, keepdim=True))
        out /= out.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return out * (grad - (grad * out).sum(dim=-1, keepdim=True))


class ModelNew(nn.Module):
    def forward(self, x):
        return Softmax.apply(x)
