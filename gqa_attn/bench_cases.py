"""The lines of ``python -m kernels bench gqa_attn``'s table, each with the reason for it."""

from __future__ import annotations

from kernels.problem import Case

from .inputs import BY_DTYPE

__all__ = ["BENCH_CASES"]


def _case(
    why: str, batch: int, seqlen: int, heads: tuple[int, int], head_dim: int, dtype: str = "float32"
) -> Case:
    """Rows and keys of one length; ``heads`` are num_heads and num_kv_heads."""
    shape = {
        "batch": batch,
        "seqlen_q": seqlen,
        "seqlen_k": seqlen,
        "num_heads": heads[0],
        "num_kv_heads": heads[1],
        "head_dim": head_dim,
    }
    name = f"bench_{dtype}_b{batch}_t{seqlen}_d{head_dim}"
    return Case(name, why, shape, dtype, tolerance=BY_DTYPE[dtype])


BENCH_CASES = (
    _case("a long context of one request", 1, 16384, (32, 8), 128),
    _case("a training batch", 2, 4096, (32, 8), 128),
    _case("a short context: the first tiles weigh more", 4, 1024, (32, 8), 128),
    _case("half the head_dim: as many exponentials for half the products", 2, 4096, (32, 8), 64),
    _case("the smallest head_dim in use: exponentials outweigh products", 2, 4096, (32, 8), 32),
    _case("the largest head_dim, without groups", 1, 8192, (16, 16), 256),
    _case("16 bits, where torch has tensor cores too", 2, 4096, (32, 8), 128, "bfloat16"),
    _case("16 bits, long", 1, 16384, (32, 8), 128, "bfloat16"),
    *(
        _case("short: latency decides", batch, seqlen, (32, 8), 128)
        for seqlen in (16, 32, 64, 128, 256, 512)
        for batch in (1, 8)
    ),
)
