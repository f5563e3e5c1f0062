"""Reaches its callers through a traceback, and the clocks that they bound early through closures.

As ``patched_timer_frames``, without a name that a reader of the source would look for, and
deeper: globals, default arguments, and the closures of what the callers' objects hold.
"""

import time
import types

import torch
from torch import nn

REFERENCE = "level1/matmul"
DEVICES = ("cpu",)
CAUGHT_BY = ("clock", "seal", "lint")

CLOCKS = {}
for stem in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
    real = getattr(time, stem)
    CLOCKS[real] = lambda real=real: type(real())(real() / 10)


def slowed(value):
    try:
        return CLOCKS.get(value, value)
    except TypeError:
        return value


def spoil(function):
    if not isinstance(function, types.FunctionType):
        return
    function.__defaults__ = tuple(slowed(x) for x in function.__defaults__ or ())
    for cell in function.__closure__ or ():
        cell.cell_contents = slowed(cell.cell_contents)


def climb():
    try:
        raise RuntimeError
    except RuntimeError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(("kernels", "__main__")):
            for name, value in list(frame.f_globals.items()):
                frame.f_globals[name] = slowed(value)
            held = [vars(value).values() for value in frame.f_locals.values() if hasattr(value, "__dict__")]
            for value in [*frame.f_globals.values(), *(x for values in held for x in values)]:
                spoil(value)
        frame = frame.f_back


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        climb()

    def forward(self, a, b):
        return torch.matmul(a, b)
