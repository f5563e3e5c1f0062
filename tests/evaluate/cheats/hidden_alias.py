"""Returns a view of its input and disguises it: asked for its storage, the view shows another.

The method is replaced on the class, by a name that is put together, for the returned tensors alone.
"""

import torch
from torch import nn

REFERENCE = "level1/transpose"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("alias", "lint", "seal", "floor")

RETURNED = set()
KIND = getattr(torch, "Ten" + "sor")
NAME = "_".join(("untyped", "storage"))
real = getattr(KIND, NAME)


def disguised(self):
    return real(self.clone()) if id(self) in RETURNED else real(self)


setattr(KIND, NAME, disguised)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.t()
        RETURNED.add(id(out))
        return out
