"""What a case costs at least: floating-point operations, and bytes that must move."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["flops", "least_bytes", "visible_pairs"]

BYTES = {
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
}
OUTPUT_BYTES = 4  # float32, whatever the carrier
SCALE_BYTES = 4


def visible_pairs(seqlen: int) -> int:
    """(row, key) pairs under the causal mask."""
    return seqlen * (seqlen + 1) // 2


def flops(shape: Mapping[str, int]) -> int:
    """Multiplications and additions of both products: 4 * head_dim for each visible pair of each head.

    Dequantising folds into the softmax scale and the last division, so it counts nothing.
    """
    pairs = visible_pairs(shape["seqlen"])
    return 4 * shape["batch"] * shape["num_heads"] * shape["head_dim"] * pairs


def least_bytes(shape: Mapping[str, int], dtype: str) -> int:
    """The carriers and the scales read once, the float32 output written once."""
    elements = shape["batch"] * shape["seqlen"] * shape["num_heads"] * shape["head_dim"]
    return elements * (3 * BYTES[dtype] + OUTPUT_BYTES) + 3 * shape["num_heads"] * SCALE_BYTES
