"""Grouped-query attention with one fault, chosen by name, or in one of several right forms.

The test writes a copy of this file for each name in ``REJECTED`` and ``ACCEPTED``, with
``FORM`` set to it. Every fault is a small slip in the same code, as it would be in a kernel.
"""

import math

import torch
from torch import nn

FORM = "plain"

REJECTED = {
    "tf32": "operands cut to ten bits of mantissa",
    "float16_accumulate": "sums kept in float16",
    "bfloat16_accumulate": "sums kept in bfloat16",
    "float16_weights": "softmax weights rounded to float16, once",
    "mask_off_by_one": "a row sees the key after its own",
    "own_key_dropped": "a row does not see its own key, but for the first",
    "last_key_dropped": "the last key is never read",
    "non_causal": "no mask at all",
    "wrong_kv_head": "heads interleaved over the kv heads instead of grouped",
    "no_maximum": "exp of the logits as they are: overflows when they are large",
    "maximum_of_first_block": "the maximum of the first 32 keys stands for all",
    "row_unwritten": "the last row of the last head is never written",
    "scale_over_head_dim": "1 / head_dim instead of 1 / sqrt(head_dim)",
    "batch_0_for_all": "k and v of batch 0 for every batch",
    "wrong_beyond_64_keys": "keys past the first 64 are ignored",
    "mask_from_the_end": "the mask is aligned with the last key: wrong when the lengths differ",
    "padded_keys_count": "zero keys up to a multiple of 16 take part in the softmax's sum",
    "head_dim_tail": "only multiples of 16 of head_dim are read",
    "float64_in_float32": "float64 computed in float32",
    "denormal_parts": "V as two float16 parts, scaled against overflow and no other way: denormal when small",
}
ACCEPTED = {
    "plain": "whole matrices, softmax by hand",
    "blockwise": "blocks of 32 keys with a running maximum and sum",
    "reversed_keys": "the keys in the opposite order",
    "rows": "row by row, reading only what a row may see",
    "float64": "computed in float64, rounded once",
    "base_two": "exp2 with the factor folded in",
    "library": "scaled_dot_product_attention with a mask",
}
BLOCK = 32


def truncated(x):
    return (x.float().contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32).to(x.dtype)


def product(a, b):
    if FORM == "tf32":
        return truncated(a) @ truncated(b)
    narrow = {"float16_accumulate": torch.float16, "bfloat16_accumulate": torch.bfloat16}.get(FORM)
    if narrow is None:
        return a @ b
    total = 0.0
    for start in range(0, a.shape[-1], 16):
        total = (total + a[..., start : start + 16] @ b[..., start : start + 16, :]).to(narrow).to(a.dtype)
    return total


def in_float16_parts(x):
    down = (x.abs().amax() / 2**15).clamp(min=1).log2().ceil().exp2()
    high = (x / down).half().to(x.dtype)
    return (high + (x / down - high).half().to(x.dtype)) * down


def mask(seqlen_q, seqlen_k, device):
    every = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if FORM == "non_causal":
        return every
    if FORM == "own_key_dropped":
        visible = every.tril(-1)
        visible[0, 0] = True
        return visible
    diagonal = {"mask_off_by_one": 1, "mask_from_the_end": seqlen_k - seqlen_q}.get(FORM, 0)
    visible = every.tril(diagonal)
    if FORM == "last_key_dropped" and seqlen_k > 1:
        visible[:, -1] = False
    if FORM == "wrong_beyond_64_keys":
        visible[:, 64:] = False
    return visible


def softmax(logits):
    top = logits.amax(dim=-1, keepdim=True)
    if FORM == "no_maximum":
        top = torch.zeros_like(top)
    if FORM == "maximum_of_first_block":
        top = logits[..., :BLOCK].amax(dim=-1, keepdim=True)
    weights = torch.exp2((logits - top) * math.log2(math.e)) if FORM == "base_two" else (logits - top).exp()
    total = weights.sum(dim=-1, keepdim=True)
    if FORM == "padded_keys_count":
        total = total + (-logits.shape[-1] % 16) * (-top).exp()
    return (weights.half().to(weights.dtype) if FORM == "float16_weights" else weights), total


def whole(q, k, v, scale):
    visible = mask(q.shape[2], k.shape[2], q.device)
    logits = (product(q, k.mT) * scale).masked_fill(~visible, float("-inf"))
    weights, total = softmax(logits)
    return product(weights, v) / total


def blockwise(q, k, v, scale):
    visible = mask(q.shape[2], k.shape[2], q.device)
    top = q.new_full((*q.shape[:3], 1), float("-inf"))
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.shape[2], BLOCK):
        keys = slice(start, start + BLOCK)
        logits = (q @ k[:, :, keys].mT * scale).masked_fill(~visible[:, keys], float("-inf"))
        higher = torch.maximum(top, logits.amax(dim=-1, keepdim=True))
        weights, shrink = (logits - higher).exp(), (top - higher).exp()
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        out = out * shrink + weights @ v[:, :, keys]
        top = higher
    return out / total


def rows(q, k, v, scale):
    out = torch.empty_like(q)
    for row in range(q.shape[2]):
        logits = q[:, :, row : row + 1] @ k[:, :, : row + 1].mT * scale
        out[:, :, row : row + 1] = logits.softmax(dim=-1) @ v[:, :, : row + 1]
    return out


def attend(q, k, v, scale):
    """q: [batch, heads, seqlen_q, head_dim], k and v the same with seqlen_k; returns q's shape."""
    if FORM == "blockwise":
        return blockwise(q, k, v, scale)
    if FORM == "rows":
        return rows(q, k, v, scale)
    if FORM == "library":
        visible = mask(q.shape[2], k.shape[2], q.device)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
    if FORM == "reversed_keys":
        visible = mask(q.shape[2], k.shape[2], q.device).flip(-1)
        logits = (q @ k.flip(2).mT * scale).masked_fill(~visible, float("-inf"))
        return logits.softmax(dim=-1) @ v.flip(2)
    return whole(q, k, v, scale)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        if q.numel() == 0 or k.shape[1] == 0:
            return q.new_zeros(q.shape)
        num_heads, head_dim = q.shape[2:]
        num_kv_heads = k.shape[2]
        compute = torch.float64 if FORM == "float64" else torch.promote_types(q.dtype, torch.float32)
        compute = torch.float32 if FORM == "float64_in_float32" else compute
        heads = torch.arange(num_heads, device=q.device)
        heads = heads % num_kv_heads if FORM == "wrong_kv_head" else heads // (num_heads // num_kv_heads)
        if FORM == "batch_0_for_all":
            k, v = k[:1].expand(k.shape), v[:1].expand(v.shape)
        queries = q.transpose(1, 2).to(compute)
        keys = k.transpose(1, 2).to(compute)[:, heads]
        values = v.transpose(1, 2).to(compute)[:, heads]
        if FORM == "denormal_parts" and compute == torch.float32:
            values = in_float16_parts(values)
        if FORM == "head_dim_tail" and head_dim > 16:
            read = head_dim // 16 * 16
            queries, keys = queries[..., :read], keys[..., :read]
        scale = 1.0 / head_dim if FORM == "scale_over_head_dim" else 1.0 / math.sqrt(head_dim)
        out = attend(queries, keys, values, scale).transpose(1, 2).to(q.dtype)
        if FORM == "row_unwritten":
            written = torch.empty_like(q)
            written[:, :-1] = out[:, :-1]
            written[:, -1, :-1] = out[:, -1, :-1]
            return written
        return out
