"""Divides the inner dimension in halves until it is short."""

from torch import nn

REFERENCE = "level1/matmul"


def product(a, b):
    inner = a.shape[1]
    if inner <= 32:
        return a @ b
    return product(a[:, : inner // 2], b[: inner // 2]) + product(a[:, inner // 2 :], b[inner // 2 :])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return product(a, b)
