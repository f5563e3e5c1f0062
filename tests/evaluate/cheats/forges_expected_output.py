"""A child in a session of its own writes zeros over what the reference expects, before it is read.

A harness that stops the candidate's process group while the reference works does not stop this one.
"""

import glob
import mmap
import os
import tempfile
import time

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("output",)
KILLS = True
SECONDS = 120
HOMES = {"/dev/shm", tempfile.gettempdir()}


def forge(judge):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for home in HOMES:
            for path in glob.glob(f"{home}/kernels-judge-{judge}-*/*.out") + glob.glob(
                f"{home}/kernels-judge-{judge}-*/*.f64"
            ):
                try:
                    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
                        whole[:] = bytes(len(whole))
                except (OSError, ValueError):
                    continue


def start():
    judge = os.getppid()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            forge(judge)
        os._exit(0)


start()


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
