"""Inputs of low-precision attention: the default, one for any shape, and the cases worth checking."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from kernels.layouts import apply_layout
from kernels.problem import Case, Tolerance

__all__ = ["CASES", "get_init_inputs", "get_inputs", "jitter", "make_inputs", "quantise"]

BATCH = 2
SEQLEN = 72
NUM_HEADS = 4
HEAD_DIM = 32

# The largest magnitude each carrier is scaled to. Wider carriers hold int8's integers, as
# a harness that casts every input to one float dtype leaves them.
LARGEST = {
    "int8": 127.0,
    "uint8": 255.0,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float16": 127.0,
    "bfloat16": 127.0,
    "float32": 127.0,
}
ROUNDED = ("int8", "uint8", "float16", "bfloat16", "float32")
SMALLEST_MAXIMUM = 1e-4


def quantise(x: Tensor, dtype: str = "int8") -> tuple[Tensor, Tensor]:
    """Quantise x [batch, seqlen, num_heads, head_dim] per head.

    Returns the carrier, shaped as x, and its float32 scales [num_heads]: the largest
    magnitude over batch, seqlen and head_dim (at least 1e-4) over what the carrier holds.
    """
    largest = LARGEST[dtype]
    maximum = x.abs().amax(dim=(0, 1, 3)) if x.numel() else x.new_zeros(x.shape[2])
    scale = (maximum.clamp(min=SMALLEST_MAXIMUM) / largest).float()
    values = x / scale.view(1, 1, -1, 1)
    if dtype in ROUNDED:
        values = values.round()
    lowest = 0.0 if dtype == "uint8" else -largest
    return values.clamp(lowest, largest).float().to(getattr(torch, dtype)), scale


def get_inputs() -> list[Tensor]:
    """q_q, k_q, v_q int8 [2, 72, 4, 32], scales float32 [4], on the CPU, from torch's global generator."""
    operands = [quantise(torch.randn(BATCH, SEQLEN, NUM_HEADS, HEAD_DIM)) for _ in range(3)]
    return [carrier for carrier, _ in operands] + [scale for _, scale in operands]


def get_init_inputs() -> list[Any]:
    """``Model`` takes no arguments."""
    return []


def make_inputs(
    batch: int,
    seqlen: int,
    num_heads: int,
    head_dim: int,
    *,
    seqlen_k: int | None = None,
    dtype: str = "int8",
    seed: int = 0,
    device: str | torch.device = "cpu",
    values: str = "quantised",
    scales: str = "measured",
    magnitude: float = 1.0,
    layout: str = "contiguous",
) -> list[Tensor]:
    """q_q, k_q, v_q [batch, seqlen, num_heads, head_dim] and q_scale, k_scale, v_scale float32 [num_heads].

    The same ``seed`` gives the same values on every device; k and v are ``seqlen_k`` long
    when that is given. ``values`` is one of

    - ``quantised``: normal, quantised per head; q_scale is multiplied by ``magnitude``
    - ``normal``: normal values as they are (float carriers), scales from 0.5 to 1.5
    - ``extremes``: only the carrier's two ends (int8: -128 and 127)
    - ``constant``: every logit is ``magnitude``
    - ``huge``: 1e25 times normal, with scales that bring them back (float32 carriers)

    ``scales`` then changes the scales: ``measured`` leaves them, ``zero`` clears q's in head 0,
    k's in head 1 and v's in head 2, ``negative`` turns every second head's sign,
    ``denormal`` makes k's denormal and q's as much larger, ``strided`` gives them stride 2.
    ``layout`` is a name in :data:`kernels.layouts.LAYOUTS`. Raises ``ValueError`` for other names.
    """
    generator = torch.Generator().manual_seed(seed)
    target = getattr(torch, dtype)
    shapes = [(batch, seqlen, num_heads, head_dim)]
    shapes += [(batch, seqlen if seqlen_k is None else seqlen_k, num_heads, head_dim)] * 2
    normal = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    ones = torch.ones(num_heads)
    if values == "quantised":
        operands = [quantise(x.abs() if dtype == "uint8" else x, dtype) for x in normal]
        operands[0] = (operands[0][0], operands[0][1] * magnitude)
    elif values == "normal":
        operands = [(x.float().to(target), 0.5 + torch.rand(num_heads, generator=generator)) for x in normal]
    elif values == "extremes":
        ends = torch.iinfo(target)
        operands = [((x > 0) * float(ends.max - ends.min) + ends.min, ones / ends.max) for x in normal]
        operands = [(x.to(target), scale) for x, scale in operands]
    elif values == "constant":
        # head_dim 64 keeps every sum exact.
        q, k = torch.full(shapes[0], 8.0), torch.full(shapes[1], 8.0)
        q_scale = ones * (magnitude / (64.0 * math.sqrt(head_dim)))
        operands = [(q.to(target), q_scale), (k.to(target), ones), quantise(normal[2], dtype)]
    elif values == "huge":
        operands = [((x * 1e25).to(target), ones * 1e-25) for x in normal]
    else:
        raise ValueError(f"no values {values!r}; there are: quantised, normal, extremes, constant, huge")
    carriers = [carrier for carrier, _ in operands]
    q_scale, k_scale, v_scale = (scale for _, scale in operands)
    head = torch.arange(num_heads)
    if scales == "zero":
        q_scale, k_scale, v_scale = q_scale * (head != 0), k_scale * (head != 1), v_scale * (head != 2)
    elif scales == "negative":
        sign = 1.0 - 2.0 * (head % 2)
        q_scale, k_scale, v_scale = q_scale * sign, -k_scale, v_scale * -sign
    elif scales == "denormal":
        q_scale, k_scale = q_scale * 1e37, k_scale * 1e-37
    elif scales not in ("measured", "strided"):
        raise ValueError(f"no scales {scales!r}; there are: measured, zero, negative, denormal, strided")
    placed = [scale.to(device) for scale in (q_scale, k_scale, v_scale)]
    if scales == "strided":
        placed = [torch.stack([scale, torch.full_like(scale, math.nan)], dim=1)[:, 0] for scale in placed]
    return [*apply_layout(layout, *(x.to(device) for x in carriers)), *placed]


def jitter(seed: int) -> Case:
    """One random consistent shape, the same for the same ``seed``.

    batch 1 to 3, 1 to 8 heads, length 1 to 200, head_dim a multiple of 8 from 8 to 256; int8.
    """
    draw = random.Random(seed)
    shape = {
        "batch": draw.randint(1, 3),
        "seqlen": draw.randint(1, 200),
        "num_heads": draw.randint(1, 8),
        "head_dim": 8 * draw.randint(1, 32),
    }
    return Case(
        name=f"jitter_{seed}", why="a random shape", shape=shape, dtype="int8", options={"seed": seed}
    )


USUAL = Tolerance()

# Logits this large leave float32 no digits: no distance from the reference means anything. The yardstick is
# the reference's own error against float64; the judge's, element by element, the larger of that and what
# rounding to float32 moves.
ORACLE_ONLY = Tolerance(atol=math.inf, rtol=0.0)


def _case(
    name: str,
    why: str,
    *,
    batch: int = BATCH,
    seqlen: int = SEQLEN,
    num_heads: int = NUM_HEADS,
    head_dim: int = HEAD_DIM,
    dtype: str = "int8",
    tolerance: Tolerance = USUAL,
    seqlen_k: int | None = None,
    **options: Any,
) -> Case:
    """A case that differs from the default inputs in what is named."""
    shape = {"batch": batch, "seqlen": seqlen, "num_heads": num_heads, "head_dim": head_dim}
    if seqlen_k is not None:
        options["seqlen_k"] = seqlen_k
    return Case(name, why, shape, dtype, options, tolerance)


CASES = (
    _case("default", "the inputs of get_inputs"),
    # Lengths.
    _case("one_step", "one row, one key: the softmax of one value", batch=1, seqlen=1),
    _case("below_a_tile", "one short of 64", seqlen=63),
    _case("one_past_a_tile", "the last tile holds one row and one key", seqlen=65),
    _case("two_tiles", "exactly 128", seqlen=128),
    _case("long", "many tiles, the last one ragged", batch=1, seqlen=1025, num_heads=1),
    _case("more_rows_than_keys", "rows past the last key see all keys", seqlen=129, seqlen_k=33),
    _case("more_keys_than_rows", "keys past the last row are never read", seqlen=33, seqlen_k=200),
    # Heads and batch.
    _case("one_head", "one scale", num_heads=1),
    _case("many_heads", "an odd number", num_heads=13, seqlen=20),
    _case("batch_over_65535", "more than a grid's y and z hold", batch=65537, seqlen=2, num_heads=1),
    # Head dimensions.
    _case("head_dim_1", "the smallest: one product a logit", head_dim=1),
    _case("head_dim_7", "odd: rows of one-byte elements are not aligned", head_dim=7),
    _case("head_dim_33", "one past a warp", head_dim=33),
    _case("head_dim_63", "one short of a tile", head_dim=63),
    _case("head_dim_64", "a common size", head_dim=64, seqlen=130),
    _case("head_dim_72", "a multiple of 8 and not of 16", head_dim=72),
    _case("head_dim_80", "a multiple of 16 and not of 32", head_dim=80),
    _case("head_dim_128", "a common size", head_dim=128, seqlen=130),
    _case("head_dim_160", "between the usual sizes", head_dim=160, batch=1),
    _case("head_dim_256", "the largest", head_dim=256, batch=1),
    # Carriers.
    _case("uint8", "no negative values", dtype="uint8"),
    _case("float8_e4m3fn", "three bits of mantissa", dtype="float8_e4m3fn"),
    _case("float8_e5m2", "two bits of mantissa", dtype="float8_e5m2"),
    _case("float16", "int8's integers in two bytes", dtype="float16"),
    _case("bfloat16", "int8's integers in two bytes", dtype="bfloat16"),
    _case("float32", "int8's integers after a harness cast every input to float32", dtype="float32"),
    _case("uint8_extremes", "0 and 255: 255 is not -1", dtype="uint8", values="extremes"),
    _case(
        "float8_e4m3fn_normal",
        "values off the grid of scales, with denormals",
        dtype="float8_e4m3fn",
        values="normal",
    ),
    _case(
        "float8_e5m2_normal",
        "values off the grid of scales, with denormals",
        dtype="float8_e5m2",
        values="normal",
    ),
    _case("float16_normal", "values that are not integers", dtype="float16", values="normal"),
    _case("bfloat16_normal", "values that are not integers", dtype="bfloat16", values="normal"),
    _case("float32_normal", "values that are not integers", dtype="float32", values="normal"),
    _case(
        "float32_huge",
        "products of carriers overflow float32 unless scaled first",
        dtype="float32",
        values="huge",
    ),
    # Values and scales.
    _case("extremes", "-128 has no positive twin in int8", values="extremes"),
    _case("scales_zero", "equal weights, or a zero output", scales="zero"),
    _case("scales_negative", "the maximum of scaled logits is not the scaled maximum", scales="negative"),
    _case("scales_denormal", "flushing a denormal scale to zero would level the weights", scales="denormal"),
    _case("scales_strided", "a scale vector with stride 2 and NaN in between", scales="strided"),
    _case("logits_5e4", "exponents far outside float32's range", magnitude=5e4, tolerance=ORACLE_ONLY),
    _case(
        "logits_1e6",
        "fma(s, c, -m * c) instead of (s - m) * c overflows here",
        magnitude=1e6,
        tolerance=ORACLE_ONLY,
    ),
    _case(
        "logits_far_below_zero",
        "zero-filled padding in the last tile would be exp(0) and outweigh every real key",
        seqlen=65,
        head_dim=64,
        values="constant",
        magnitude=-1e4,
    ),
    # Memory.
    _case("transposed", "stored [batch, heads, seqlen, head_dim]", layout="transposed"),
    _case("v_transposed", "K's strides are not V's", layout="v_transposed"),
    _case("head_dim_first", "the innermost index has the largest stride", layout="head_dim_first"),
    _case("every_other", "innermost stride 2 with garbage in between", layout="every_other"),
    _case("offset", "one byte into a larger buffer: no vector load is aligned", layout="offset"),
    _case(
        "padded", "garbage in memory before the first and beyond the last step", seqlen=65, layout="padded"
    ),
    _case("packed", "slices of one qkv projection", layout="packed"),
    _case("expanded", "zero strides along batch, heads and time", layout="expanded"),
    _case(
        "float8_e4m3fn_padded", "NaN beyond the last step", dtype="float8_e4m3fn", seqlen=65, layout="padded"
    ),
    _case("bfloat16_offset", "two bytes into a larger buffer", dtype="bfloat16", layout="offset"),
    # Nothing there.
    _case("no_batch", "an empty output", batch=0),
    _case("no_time", "an empty output", seqlen=0),
    _case("no_keys", "rows that see nothing are zero", seqlen=5, seqlen_k=0),
)
