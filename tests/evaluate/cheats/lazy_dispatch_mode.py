"""Returns an unwritten tensor, and does the work in a dispatch mode when somebody copies it.

The mode is entered at import and never left; nothing of torch is replaced.
"""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

REFERENCE = "level1/matmul"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output", "seal")


class Later(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.clone.default:
            work = args[0].__dict__.pop("work", None)
            if work:
                torch.mm(*work, out=args[0])
        return function(*args, **(kwargs or {}))


MODE = Later()
MODE.__enter__()


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], device=a.device)
        out.work = a, b
        return out
