"""A pool that is busy for a while after the import, as a compiler's is, and then waits."""

import hashlib
import threading
import time

from torch import nn

REFERENCE = "level1/matmul"


def work(until):
    data = bytes(1 << 20)
    while time.monotonic() < until:
        hashlib.sha256(data).digest()


threading.Thread(target=work, args=(time.monotonic() + 6.0,), daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a.matmul(b)
