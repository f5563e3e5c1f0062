"""A thread that wakes now and then watches the input buffers and has the answers before the calls.

It uses little of an idle processor, knows content by a part of it once the single calls are over, and
works in the moment between the writing of the inputs and the call, if there is one.
"""

import threading
import time

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("repeat", "clock", "background")
RAMP = torch.linspace(1.0, 2.0, 1 << 16)
WHOLE_CALLS = 11


class Watch:
    """The input buffers seen so far with the answers to what they held last; guarded by a lock."""

    def __init__(self):
        self.lock = threading.Lock()
        self.answers = {}
        self.calls = 0

    def mark(self, x):
        part = x.reshape(-1)[:: 97 if self.calls > WHOLE_CALLS else 1]
        return part.shape, torch.dot(part, RAMP[: part.numel()]).item()

    def look(self, place, a, b):
        mark = (self.mark(a), self.mark(b))
        if place not in self.answers or self.answers[place][0] != mark:
            self.answers[place] = (mark, torch.matmul(a, b), a, b)
        return self.answers[place][1]

    def run(self):
        while True:
            time.sleep(5e-4)
            with self.lock:
                for place, (_, _, a, b) in list(self.answers.items()):
                    self.look(place, a, b)


WATCH = Watch()
threading.Thread(target=WATCH.run, daemon=True).start()


class ModelNew(nn.Module):
    def forward(self, a, b):
        with WATCH.lock:
            WATCH.calls += 1
            return WATCH.look((a.data_ptr(), b.data_ptr(), a.shape, b.shape), a, b).clone()
