"""Inputs of grouped-query attention: the default, one for any shape, and the cases worth checking."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from kernels.layouts import apply_layout
from kernels.problem import Case, Tolerance

__all__ = ["CASES", "get_init_inputs", "get_inputs", "jitter", "make_inputs"]

BATCH = 2
SEQLEN = 80
NUM_HEADS = 8
NUM_KV_HEADS = 2
HEAD_DIM = 32


def get_inputs() -> list[Tensor]:
    """q [2, 80, 8, 32] and k, v [2, 80, 2, 32], float32 on the CPU, from torch's global generator."""
    return [
        torch.randn(BATCH, SEQLEN, NUM_HEADS, HEAD_DIM),
        torch.randn(BATCH, SEQLEN, NUM_KV_HEADS, HEAD_DIM),
        torch.randn(BATCH, SEQLEN, NUM_KV_HEADS, HEAD_DIM),
    ]


def get_init_inputs() -> list[Any]:
    """``Model`` takes no arguments."""
    return []


def make_inputs(
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    dtype: str = "float32",
    seed: int = 0,
    device: str | torch.device = "cpu",
    values: str = "randn",
    magnitude: float = 1.0,
    v_magnitude: float = 1.0,
    layout: str = "contiguous",
) -> list[Tensor]:
    """q [batch, seqlen_q, num_heads, head_dim] and k, v [batch, seqlen_k, num_kv_heads, head_dim].

    The same ``seed`` gives the same values on every device. ``values`` is one of

    - ``randn``: normal q and k, times ``magnitude``
    - ``logits``: normal q and k, scaled so that logits spread by ``magnitude``
    - ``constant``: every logit is ``magnitude``
    - ``falling``: each key's logit is ``magnitude`` below the one before
    - ``rising``: each key's logit is ``magnitude`` above the one before

    v is normal, times ``v_magnitude``. ``layout`` is a name in
    :data:`kernels.layouts.LAYOUTS`. Raises ``ValueError`` for other names.
    """
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = randn(batch, seqlen_q, num_heads, head_dim)
    k = randn(batch, seqlen_k, num_kv_heads, head_dim)
    v = randn(batch, seqlen_k, num_kv_heads, head_dim)
    if values == "randn":
        q, k = q * magnitude, k * magnitude
    elif values == "logits":
        q, k = q * math.sqrt(magnitude), k * math.sqrt(magnitude)
    elif values in ("constant", "falling", "rising"):
        # q is 1, so the logit is sqrt(head_dim) times k; head_dim 64 keeps every sum exact.
        step = torch.ones(seqlen_k, dtype=torch.float64)
        if values != "constant":
            step = torch.arange(seqlen_k, dtype=torch.float64) * (1 if values == "rising" else -1)
        q = torch.ones_like(q)
        k = (step * magnitude / math.sqrt(head_dim)).view(1, -1, 1, 1).expand(k.shape).contiguous()
    else:
        raise ValueError(f"no values {values!r}; there are: randn, logits, constant, falling, rising")
    v = v * v_magnitude
    target = getattr(torch, dtype)
    return list(apply_layout(layout, *(x.to(target).to(device) for x in (q, k, v))))


def jitter(seed: int) -> Case:
    """One random consistent shape, the same for the same ``seed``.

    batch 1 to 3, 1 to 4 kv heads with groups of 1 to 8, lengths 1 to 200 (one length in
    half of the draws), head_dim a multiple of 8 from 8 to 256.
    """
    draw = random.Random(seed)
    num_kv_heads = draw.randint(1, 4)
    seqlen_q = draw.randint(1, 200)
    shape = {
        "batch": draw.randint(1, 3),
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_q if draw.random() < 0.5 else draw.randint(1, 200),
        "num_heads": num_kv_heads * draw.choice((1, 2, 3, 4, 8)),
        "num_kv_heads": num_kv_heads,
        "head_dim": 8 * draw.randint(1, 32),
    }
    return Case(name=f"jitter_{seed}", why="a random shape", shape=shape, options={"seed": seed})


# Logits this large leave float32 no digits: no distance from the reference means anything. The yardstick is
# the reference's own error against float64; the judge's, element by element, the larger of that and what
# rounding to float32 moves.
ORACLE_ONLY = Tolerance(atol=math.inf, rtol=0.0)

# With head_dim 64 these logits are exact in the reference, which is no yardstick for a
# kernel that rounds logits of 100 the usual way.
EXACT_LOGITS = Tolerance(oracle_floor=2e-5)

# As for outputs near 1, with outputs of 1e-4: V in one float16 part is 1e-7 off, in two parts of which
# one is denormal 3e-8, the kernels 3e-11.
SMALL_V = Tolerance(atol=1e-8, oracle_floor=1e-10)

# One unit in the last place of the output's dtype on top of the usual tolerance.
BY_DTYPE = {
    "float32": Tolerance(),
    # What either side is from the other, at most 5e-15 of outputs near 1, 4 times over and more.
    "float64": Tolerance(atol=1e-12, rtol=1e-12, oracle_floor=2e-14),
    "float16": Tolerance(rtol=1e-4 + 2.0**-10),
    "bfloat16": Tolerance(rtol=1e-4 + 2.0**-7),
}


def _case(
    name: str,
    why: str,
    *,
    batch: int = 2,
    seqlen_q: int = SEQLEN,
    seqlen_k: int | None = None,
    num_heads: int = NUM_HEADS,
    num_kv_heads: int = NUM_KV_HEADS,
    head_dim: int = HEAD_DIM,
    dtype: str = "float32",
    tolerance: Tolerance | None = None,
    **options: Any,
) -> Case:
    """A case that differs from the default inputs in what is named; ``seqlen_k`` follows ``seqlen_q``."""
    shape = {
        "batch": batch,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_q if seqlen_k is None else seqlen_k,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
    }
    return Case(name, why, shape, dtype, options, BY_DTYPE[dtype] if tolerance is None else tolerance)


CASES = (
    _case("default", "the inputs of get_inputs"),
    # Lengths.
    _case("one_step", "one row, one key: the softmax of one value", batch=1, seqlen_q=1),
    _case("one_row_many_keys", "row 0 sees key 0 alone, whatever lies beyond", seqlen_q=1, seqlen_k=65),
    _case("one_key_many_rows", "every row sees the same key: the output is v", seqlen_q=70, seqlen_k=1),
    _case("more_rows_than_keys", "rows past the last key see all keys", seqlen_q=129, seqlen_k=33),
    _case("more_keys_than_rows", "keys past the last row are never read", seqlen_q=33, seqlen_k=200),
    _case("below_a_tile", "one short of 64", seqlen_q=63),
    _case("one_past_a_tile", "the last tile holds one row and one key", seqlen_q=65),
    _case("two_tiles", "exactly 128", seqlen_q=128),
    _case("long", "many tiles, the last one ragged", batch=1, seqlen_q=1025, num_heads=2, num_kv_heads=1),
    # Heads.
    _case("no_group", "one query head for each kv head", num_heads=3, num_kv_heads=3),
    _case("one_kv_head", "all query heads share one kv head, an odd number", num_heads=7, num_kv_heads=1),
    _case("group_of_3", "a group that is no power of two", num_heads=6, num_kv_heads=2),
    _case(
        "group_of_16", "a group as large as an MMA tile is high", num_heads=16, num_kv_heads=1, seqlen_q=40
    ),
    _case(
        "batch_over_65535",
        "more than a grid's y and z hold",
        batch=65537,
        seqlen_q=2,
        num_heads=1,
        num_kv_heads=1,
    ),
    # Head dimensions.
    _case("head_dim_1", "the smallest: one product a logit", head_dim=1, seqlen_q=70),
    _case("head_dim_7", "odd and below a vector load", head_dim=7),
    _case("head_dim_33", "one past a warp", head_dim=33),
    _case("head_dim_63", "one short of a tile", head_dim=63, seqlen_q=66),
    _case("head_dim_64", "a common size", head_dim=64, seqlen_q=130),
    _case("head_dim_72", "a multiple of 8 and not of 16", head_dim=72),
    _case("head_dim_80", "a multiple of 16 and not of 32", head_dim=80),
    _case("head_dim_128", "a common size", head_dim=128, seqlen_q=130),
    _case("head_dim_160", "between the usual sizes", head_dim=160, batch=1),
    _case("head_dim_256", "the largest", head_dim=256, batch=1, seqlen_q=70),
    # Dtypes.
    _case("float64", "computed in float64 throughout", dtype="float64"),
    _case("float64_head_dim_33", "two words an element, odd head_dim", dtype="float64", head_dim=33),
    _case("float16", "computed in float32, rounded once", dtype="float16"),
    _case("float16_head_dim_80", "no power of two", dtype="float16", head_dim=80, seqlen_q=67),
    _case("bfloat16", "computed in float32, rounded once", dtype="bfloat16"),
    _case(
        "bfloat16_head_dim_33", "odd rows of two-byte elements are not aligned", dtype="bfloat16", head_dim=33
    ),
    # Values.
    _case(
        "logits_in_the_thousands",
        "near ties between large logits: float32 alone loses the tolerance here",
        magnitude=30.0,
        v_magnitude=30.0,
        tolerance=ORACLE_ONLY,
    ),
    _case(
        "logits_5e4",
        "exponents far outside float32's range",
        values="logits",
        magnitude=5e4,
        tolerance=ORACLE_ONLY,
    ),
    _case(
        "logits_1e6",
        "fma(s, c, -m * c) instead of (s - m) * c overflows here",
        values="logits",
        magnitude=1e6,
        tolerance=ORACLE_ONLY,
    ),
    _case(
        "falling_logits",
        "the first block holds the maximum",
        seqlen_q=200,
        head_dim=64,
        values="falling",
        magnitude=0.5,
        tolerance=EXACT_LOGITS,
    ),
    _case(
        "rising_logits",
        "every block raises the maximum",
        seqlen_q=200,
        head_dim=64,
        values="rising",
        magnitude=0.5,
        tolerance=EXACT_LOGITS,
    ),
    _case(
        "steep_logits",
        "earlier blocks vanish as the maximum rises",
        seqlen_q=130,
        head_dim=64,
        values="rising",
        magnitude=50.0,
        tolerance=EXACT_LOGITS,
    ),
    _case(
        "logits_far_below_zero",
        "zero-filled padding in the last tile would be exp(0) and outweigh every real key",
        seqlen_q=65,
        head_dim=64,
        values="constant",
        magnitude=-1e4,
    ),
    _case(
        "small_values",
        "float16 parts of these would be denormal",
        magnitude=1e-4,
        v_magnitude=1e-4,
        tolerance=SMALL_V,
    ),
    _case("large_v", "float16 parts of these would overflow", v_magnitude=1e6, tolerance=ORACLE_ONLY),
    # Memory.
    _case("transposed", "stored [batch, heads, seqlen, head_dim]", layout="transposed"),
    _case("v_transposed", "K's strides are not V's", layout="v_transposed"),
    _case("head_dim_first", "the innermost index has the largest stride", layout="head_dim_first"),
    _case("every_other", "innermost stride 2 with NaN in between", layout="every_other"),
    _case("offset", "four bytes into a larger buffer: no vector load is aligned", layout="offset"),
    _case("padded", "NaN in memory before the first and beyond the last step", seqlen_q=65, layout="padded"),
    _case("packed", "slices of one qkv projection", layout="packed"),
    _case("expanded", "zero strides along batch, heads and time", layout="expanded"),
    _case("float16_transposed", "strides count elements, not bytes", dtype="float16", layout="transposed"),
    _case("bfloat16_offset", "two bytes into a larger buffer", dtype="bfloat16", layout="offset"),
    _case(
        "float64_every_other",
        "innermost stride 2 of eight-byte elements",
        dtype="float64",
        layout="every_other",
    ),
    # Nothing there.
    _case("no_batch", "an empty output", batch=0),
    _case("no_rows", "an empty output", seqlen_q=0, seqlen_k=5),
    _case("no_keys", "rows that see nothing are zero", seqlen_q=5, seqlen_k=0),
    _case("no_time", "an empty output", seqlen_q=0),
)
