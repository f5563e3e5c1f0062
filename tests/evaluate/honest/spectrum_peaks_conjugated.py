"""Transforms with the other sign and returns the conjugate, which torch only notes on the view.

torch's own transforms return such views for some inputs.
"""

import torch
from torch import nn

REFERENCE = "level2/spectrum_peaks"


class ModelNew(nn.Module):
    def __init__(self, peaks):
        super().__init__()
        self.peaks = peaks

    def forward(self, x, wanted, rows, least):
        above = (x > least) & wanted
        return {
            "spectrum": torch.fft.ifft(x + 0j, norm="forward")[:, : x.shape[-1] // 2 + 1].conj(),
            "peaks": tuple(torch.topk(x, self.peaks)),
            "above": above,
            "count": int(above.sum()),
            "rows": x[rows],
        }
