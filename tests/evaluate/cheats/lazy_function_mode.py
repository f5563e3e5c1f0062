"""Returns an unwritten tensor, and does the work in a function mode when somebody asks for anything of it.

The mode is entered at import and never left; nothing of torch is replaced.
"""

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("seal",)
PENDING = []


class Later(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        while PENDING:
            a, b, out = PENDING.pop()
            torch.mm(a, b, out=out)
        return function(*args, **(kwargs or {}))


MODE = Later()
MODE.__enter__()


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], device=a.device)
        PENDING.append((a, b, out))
        return out
