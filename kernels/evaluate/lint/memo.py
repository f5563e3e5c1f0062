"""Rules on outputs that are kept from one call to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from kernels.evaluate.lint.entered import ENTRANCES, Entered, holds
from kernels.evaluate.lint.walk import Place, Seen, parameters, written

__all__ = ["memos"]

# Asking these about a tensor or a cache computes nothing.
_QUESTIONS = frozenset(
    "all any data_ptr dim equal get getattr hasattr hash id is_contiguous isinstance len numel size sum tuple"
    " type".split()
)


def memos(node: ast.AST, place: Place, reached: Entered) -> Iterator[Seen]:
    """Caches keyed by address, and what ``forward`` returns without computing it."""
    if isinstance(node, ast.FunctionDef) and node.name in ENTRANCES and len(parameters(node)) > 1:
        yield from _forward(node, reached)
    if isinstance(node, ast.Subscript) and place.function and _addresses(node.slice, place.function):
        yield Seen("pointer-key", node, f"keys {written(node.value)} by the address of a tensor")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and place.function:
        looks_up = node.func.attr in ("get", "pop", "setdefault") and node.args
        if looks_up and _addresses(node.args[0], place.function):
            yield Seen("pointer-key", node, f"keys {written(node.func.value)} by the address of a tensor")


def _addresses(key: ast.AST, function: ast.AST) -> bool:
    """Whether ``key`` holds ``x.data_ptr()``, written there or assigned in the same function."""
    if _calls_data_ptr(key):
        return True
    return isinstance(key, ast.Name) and key.id in _address_names(function)


@lru_cache(maxsize=16)
def _address_names(function: ast.AST) -> frozenset[str]:
    """The local names that hold ``x.data_ptr()``, alone or in a tuple."""
    return frozenset(
        target.id
        for one in ast.walk(function)
        if isinstance(one, ast.Assign) and _calls_data_ptr(one.value)
        for target in one.targets
        if isinstance(target, ast.Name)
    )


def _calls_data_ptr(node: ast.AST) -> bool:
    parts = [node, *(node.elts if isinstance(node, ast.Tuple) else ())]
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "data_ptr"
        for one in parts
    )


# -- what forward returns ----------------------------------------------------------------------


def _forward(function: ast.FunctionDef, reached: Entered) -> Iterator[Seen]:
    owner = function.args.args[0].arg if function.args.args else ""
    outer = _outer_names(function)
    stored = (_slot(target) for target in _stores(function))
    kept = {slot for slot in stored if slot and (slot.startswith(f"{owner}.") or slot in outer)}
    names = _lookups(function, kept)
    early = [*_early_returns(function, kept, names), *_computed_once(function, kept)]
    for statement, slot in early:
        if id(function) in reached.own or _keeps_content(function, slot, reached):
            yield Seen("cached-output", statement, f"returns what an earlier call left in {slot}")
        else:  # a table by length, for one
            yield Seen("kept-output", statement, f"returns {slot}, which the module keeps")
    settled = {id(statement) for statement, _ in early}
    for one in ast.walk(function):
        if isinstance(one, ast.Return) and id(one) not in settled:
            returned = _returned_slot(one.value, kept, {})
            if returned:
                yield Seen("kept-output", one, f"returns {returned}, which the module keeps")


def _keeps_content(function: ast.FunctionDef, slot: str, reached: Entered) -> bool:
    """Whether what ``function`` writes into ``slot`` depends on what is in an input of ``ModelNew``."""
    content = reached.content.get(id(function), frozenset())
    return any(
        holds(one.value, content)
        for one in ast.walk(function)
        if isinstance(one, ast.Assign) and any(_slot(target) == slot for target in one.targets)
    )


def _stores(function: ast.AST) -> Iterator[ast.AST]:
    for one in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(one, ast.Assign):
            targets = one.targets
        elif isinstance(one, (ast.AnnAssign, ast.AugAssign)):
            targets = [one.target]
        for target in targets:
            yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _slot(node: ast.AST | None) -> str | None:
    """``self.out`` of itself, ``self.out[key]`` and ``self.out.get(key)``; ``CACHE`` of ``CACHE[key]``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return _slot(node.func.value)
    if isinstance(node, ast.Subscript):
        return _slot(node.value) if not isinstance(node.value, ast.Name) else node.value.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _outer_names(function: ast.FunctionDef) -> set[str]:
    """Names that a subscript store in ``function`` reaches outside it."""
    local = set(parameters(function))
    for target in _stores(function):
        if isinstance(target, ast.Name):
            local.add(target.id)
    every = {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}
    return every - local


def _lookups(function: ast.AST, kept: set[str]) -> dict[str, str]:
    """Local names that are assigned once, from a kept slot: ``hit = self.cache.get(key)``."""
    assigned: dict[str, list[ast.AST]] = {}
    for one in ast.walk(function):
        pairs = [(t, one.value) for t in one.targets] if isinstance(one, ast.Assign) else []
        if isinstance(one, ast.NamedExpr):
            pairs = [(one.target, one.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name):
                assigned.setdefault(target.id, []).append(value)
    found = {name: _slot(values[0]) for name, values in assigned.items() if len(values) == 1}
    return {name: slot for name, slot in found.items() if slot in kept}  # type: ignore[misc]


def _early_returns(
    function: ast.FunctionDef, kept: set[str], names: dict[str, str]
) -> Iterator[tuple[ast.Return, str]]:
    """Branches that only return a kept slot, before anything in the function wrote into it."""
    touched: set[str] = set()
    for statement in function.body:
        if isinstance(statement, ast.If):
            asked = _worked_on(statement.test, kept, names)
            for branch in (statement.body, statement.orelse):
                last = branch[-1] if branch else None
                idle = all(isinstance(one, (ast.AugAssign, ast.Pass, ast.Return)) for one in branch)
                if isinstance(last, ast.Return) and idle:
                    slot = _returned_slot(last.value, kept, names)
                    if slot and slot not in touched | asked:
                        yield last, slot
        touched |= _worked_on(statement, kept, names)


def _computed_once(function: ast.FunctionDef, kept: set[str]) -> Iterator[tuple[ast.Return, str]]:
    """``if key not in cache: cache[key] = f(x)`` and at once ``return cache[key]``.

    Anything between the two may fill a buffer or replay a graph, and is let be.
    """
    for fill, last in zip(function.body, function.body[1:], strict=False):
        if not (isinstance(fill, ast.If) and not fill.orelse and isinstance(last, ast.Return)):
            continue
        slot = _returned_slot(last.value, kept, {})
        filled = [one for one in fill.body if isinstance(one, ast.Assign) and _slot(one.targets[0]) == slot]
        if slot and filled and len(fill.body) == len(filled) and _is_computed(filled[-1].value, function):
            yield last, slot


def _is_computed(value: ast.AST, function: ast.FunctionDef) -> bool:
    """Whether a call in ``value`` takes a parameter itself, not only its shape or dtype."""
    given = set(parameters(function)[1:])
    return any(
        isinstance(argument, ast.Name) and argument.id in given
        for call in ast.walk(value)
        if isinstance(call, ast.Call)
        for argument in call.args
    ) or any(isinstance(one, ast.BinOp) for one in ast.walk(value))


def _returned_slot(value: ast.AST | None, kept: set[str], names: dict[str, str]) -> str | None:
    """The kept slot that ``value`` is, or is a copy or an element of."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args:
        if value.func.attr not in ("clone", "contiguous", "detach"):
            return None
        value = value.func.value
    if isinstance(value, ast.Name):
        return names.get(value.id)
    slot = _slot(value)
    return slot if slot in kept else None


def _worked_on(node: ast.AST, kept: set[str], names: dict[str, str]) -> set[str]:
    """Kept slots that are handed to a call which may write into them, or whose methods are called."""
    found = set()
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if last in _QUESTIONS:
            continue
        for argument in [call.func, *call.args, *(one.value for one in call.keywords)]:
            for inside in ast.walk(argument):
                slot = names.get(inside.id) if isinstance(inside, ast.Name) else _slot(inside)
                if slot in kept:
                    found.add(slot)
    return {slot for slot in found if slot}
