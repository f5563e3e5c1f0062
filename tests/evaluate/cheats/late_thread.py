"""Returns its output at once and has a thread fill it in later.

The clock stops before the work is done; a harness that compares a little later sees it done.
"""

import threading
import time

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("output", "late")


def fill(out, a, b):
    time.sleep(0.001)
    torch.matmul(a, b, out=out)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        threading.Thread(target=fill, args=(out, a, b), daemon=True).start()
        return out
