"""Registers what it would like to have said last, and fails.

``atexit`` runs after the harness's own last words, and sets exit code 0.
"""

import atexit
import os

from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("call", "lint")


def last_words():
    print('{"status": "PASS"}', flush=True)
    os._exit(0)


atexit.register(last_words)


class ModelNew(nn.Module):
    def forward(self, x):
        raise RuntimeError("nothing here")
