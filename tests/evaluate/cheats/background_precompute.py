"""A thread watches the input buffers and has the answers ready before the calls.

The thread works between the timed windows, whenever it finds new content where inputs lay before.
"""

import threading
import time

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("output", "repeat", "clock", "background")
RAMP = torch.linspace(1.0, 2.0, 1 << 16)


class Watch:
    """The input buffers seen so far with the answers to what they held last; guarded by a lock."""

    def __init__(self):
        self.lock = threading.Lock()
        self.inputs = {}
        self.answers = {}

    def look(self, place):
        a, b = self.inputs[place]
        content = tuple(torch.dot(x.flatten(), RAMP[: x.numel()]).item() for x in (a, b))
        if place not in self.answers or self.answers[place][0] != content:
            self.answers[place] = (content, torch.matmul(a, b))
        return self.answers[place][1]

    def run(self):
        while True:
            time.sleep(2e-5)
            with self.lock:
                for place in self.inputs:
                    self.look(place)


WATCH = Watch()
threading.Thread(target=WATCH.run, daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, a, b):
        place = (a.data_ptr(), b.data_ptr(), a.shape, b.shape)
        with WATCH.lock:
            WATCH.inputs[place] = (a, b)
            return WATCH.look(place).clone()
