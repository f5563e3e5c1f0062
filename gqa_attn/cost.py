"""What a case costs at least: floating-point operations, and bytes that must move."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["flops", "least_bytes", "visible_pairs"]

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def visible_pairs(seqlen_q: int, seqlen_k: int) -> int:
    """(row, key) pairs under the causal mask: the sum over rows of min(row + 1, seqlen_k)."""
    square = min(seqlen_q, seqlen_k)
    return square * (square + 1) // 2 + (seqlen_q - square) * seqlen_k


def flops(shape: Mapping[str, int]) -> int:
    """Multiplications and additions of both products: 4 * head_dim for each visible pair of each head."""
    pairs = visible_pairs(shape["seqlen_q"], shape["seqlen_k"])
    return 4 * shape["batch"] * shape["num_heads"] * shape["head_dim"] * pairs


def least_bytes(shape: Mapping[str, int], dtype: str) -> int:
    """q read and the output written once, k and v read once as far as any row sees them."""
    row = shape["batch"] * shape["head_dim"] * BYTES[dtype]
    seen = min(shape["seqlen_q"], shape["seqlen_k"])
    return row * (2 * shape["seqlen_q"] * shape["num_heads"] + 2 * seen * shape["num_kv_heads"])
