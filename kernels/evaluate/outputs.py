"""What came back from two workers, beside each other: structure, bytes, whose memory an output is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels.evaluate.workers.exchange import by_key

__all__ = ["changed_bytes", "equal", "identical", "leaves_of", "rule_broken", "structure_difference"]


def structure_difference(got: Any, expected: Any, devices: Mapping[str, str], device: str) -> str:
    """How the structure, a shape, a dtype or a device differs; empty when none does."""
    ours, theirs = leaves_of(got), leaves_of(expected)
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return f"it returns {_shape_words(ours)}, the reference returns {_shape_words(theirs)}"
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        where = f"output{path}" if path else "the output"
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            return f"{where} cannot be compared"
        if a.shape != b.shape:
            return f"{where}: shape is {tuple(a.shape)}, the reference's is {tuple(b.shape)}"
        if a.dtype != b.dtype:
            return f"{where}: dtype is {a.dtype}, the reference's is {b.dtype}"
        if devices.get(path, device) not in (device, ""):
            return f"{where}: device is {devices[path]}, the reference's is {device}"
    return ""


def changed_bytes(before: torch.Tensor, after: Any) -> int:
    """How many bytes differ; all of them when there are not as many."""
    if not isinstance(after, torch.Tensor) or after.dtype != torch.uint8 or after.shape != before.shape:
        return max(1, before.numel())
    return 0 if torch.equal(before, after) else int((before != after).sum())


def rule_broken(facts: Any, reference: Mapping[str, Any]) -> tuple[str, str]:
    """The layer and the reason when an output is no plain tensor or in memory it must not be in."""
    for fact in facts:
        where = f"output{fact['path']}" if fact["path"] else "the output"
        if not fact["plain"]:
            return "type", f"{where} is a {fact['type']} ({fact['layout']}); supported: plain torch.Tensor"
        # A conjugation is noted by torch's own transforms; a negation by nobody who means to do the work.
        pending = "negation" in fact["pending"]
        if pending and "negation" not in reference["pending"].get(fact["path"], ()):
            return "type", f"{where} has its negation still to be done; the reference's has not"
        if fact["overlaps"] and fact["path"] not in reference["overlaps"]:
            return "alias", f"{where} has elements that share memory; the reference's do not"
        if fact["aliases_input"] and fact["path"] not in reference["returns_inputs"]:
            return "alias", f"{where} shares memory with an input; the reference's does not"
        own = (*reference["returns_inputs"], *reference["returns_state"])
        if fact["aliases_earlier"] and fact["path"] not in own:
            return "alias", f"{where} is in the memory of the output before it, which it overwrites"
    return "", ""


def leaves_of(value: Any) -> list[tuple[str, Any]]:
    """Tensors and numbers with their paths, dicts by key; a number becomes a tensor of no dimension.

    A float is float32 there: it comes of float32 as a rule, and ``.item()`` gives it no further digits.
    """
    found: list[tuple[str, Any]] = []
    _gather(value, "", found)
    return found


def _gather(value: Any, path: str, found: list[tuple[str, Any]]) -> None:
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _gather(item, f"{path}[{number}]", found)
    elif isinstance(value, Mapping):
        for key, item in by_key(value):
            _gather(item, f"{path}[{key!r}]", found)
    elif isinstance(value, torch.Tensor):
        found.append((path, value))
    elif isinstance(value, (bool, int, float, complex)):
        found.append((path, torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else None)))
    else:
        found.append((f"{path}: {value!r}", torch.empty(0)))


def _shape_words(leaves: list[tuple[str, Any]]) -> str:
    words = [f"{path or 'a tensor'} {tuple(leaf.shape)}" for path, leaf in leaves[:4]]
    return ", ".join(words) + (f" and {len(leaves) - 4} more" if len(leaves) > 4 else "") or "nothing"


def equal(one: Any, other: Any) -> bool:
    ours, theirs = leaves_of(one), leaves_of(other)
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return False
    return all(
        a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        for (_, a), (_, b) in zip(ours, theirs, strict=True)
    )


def identical(one: Any, other: Any) -> bool:
    """Whether two values have the same leaves, bit for bit: NaN is equal to itself, and 0.0 not to -0.0."""
    ours, theirs = leaves_of(one), leaves_of(other)
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return False
    return all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        for (_, a), (_, b) in zip(ours, theirs, strict=True)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
