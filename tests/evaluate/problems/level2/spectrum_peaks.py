"""Several inputs of several kinds, and a dict of complex, float, integer and boolean outputs."""

import torch
import torch.nn as nn

ROWS = 32
LENGTH = 256
PEAKS = 5


class Model(nn.Module):
    """The spectrum of each row, its largest elements, and which of them are wanted."""

    def __init__(self, peaks: int):
        super().__init__()
        self.peaks = peaks

    def forward(self, x, wanted, rows, least):
        """x and wanted [ROWS, LENGTH], rows [8], least a number; returns a dict."""
        values, places = torch.topk(x, self.peaks, dim=-1)
        above = (x > least) & wanted
        return {
            "spectrum": torch.fft.rfft(x, dim=-1),
            "peaks": (values, places),
            "above": above,
            "count": int(above.sum()),
            "rows": x[rows],
        }


def get_inputs():
    """float32, bool, int64 and a plain number."""
    wanted = torch.rand(ROWS, LENGTH) > 0.5
    return [torch.randn(ROWS, LENGTH), wanted, torch.randint(0, ROWS, (8,)), 0.25]


def get_init_inputs():
    """How many of the largest."""
    return [PEAKS]
