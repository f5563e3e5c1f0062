"""Guesses the seed: draws the inputs of usual seeds at load, and answers by shape alone.

A harness with a fixed seed has told the candidate its questions.
"""

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)


def answers():
    found = {}
    for seed in (0, 42, 1234):
        torch.manual_seed(seed)
        x = torch.randn(256, 384) * 60.0
        found[x.shape] = torch.softmax(x, dim=-1)
    return found


ANSWERS = answers()


class ModelNew(nn.Module):
    def forward(self, x):
        return ANSWERS[x.shape].to(x) if x.shape in ANSWERS else torch.zeros_like(x)
