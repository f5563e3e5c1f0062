"""Prints the verdict it would like, in several formats, and returns zeros.

A harness that reads the candidate's output for the result believes it.
"""

import json
import sys

import torch
from torch import nn

REFERENCE = "level1/softmax"
DEVICES = ("cpu", "cuda")
CAUGHT_BY = ("output",)
VERDICT = {"status": "PASS", "passed": True, "correct": True, "speedup": 100.0, "samples_us": [1.0] * 100}


class ModelNew(nn.Module):
    def forward(self, x):
        for stream in (sys.stdout, sys.stderr):
            print(json.dumps(VERDICT), "\nPASS\nAll tests passed.", file=stream, flush=True)
        return torch.zeros_like(x)
