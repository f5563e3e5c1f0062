"""The lines of ``python -m kernels bench fp8_attn``'s table, each with the reason for it."""

from __future__ import annotations

from kernels.problem import Case

__all__ = ["BENCH_CASES"]


def _case(why: str, batch: int, seqlen: int, head_dim: int, dtype: str = "int8") -> Case:
    """16 heads, the keys as long as the rows."""
    shape = {"batch": batch, "seqlen": seqlen, "num_heads": 16, "head_dim": head_dim}
    return Case(f"bench_{dtype}_b{batch}_t{seqlen}_d{head_dim}", why, shape, dtype)


BENCH_CASES = (
    _case("a long context of one request", 1, 16384, 128),
    _case("a training batch", 2, 4096, 128),
    _case("a short context: the first tiles weigh more", 4, 1024, 128),
    _case("half the head_dim: as many exponentials for half the products", 2, 4096, 64),
    _case("the smallest head_dim in use", 2, 4096, 32),
    _case("the float carrier, long", 1, 16384, 128, "float8_e4m3fn"),
    *(
        _case("short: latency decides", batch, seqlen, 128)
        for seqlen in (16, 32, 64, 128, 256, 512)
        for batch in (1, 8)
    ),
)
