"""Every node of a Python file, each with what its names stand for at that place."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kernels.evaluate.lint.names import Scope, Scopes, bound_names

__all__ = ["Function", "Place", "Seen", "parameters", "walk", "written"]

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
# What a step of the walk hands out: a node with its place, or the steps below it.
_Steps = Iterator[Any]
_LONGEST = 80
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Place:
    """Where a node stands: the scopes, the innermost function, and whether only ``__main__`` runs it."""

    scopes: Scopes
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    only_main: bool = False


@dataclass(frozen=True)
class Seen:
    """A rule that matched a node, in words."""

    rule: str
    node: ast.AST
    message: str


def walk(tree: ast.Module) -> Iterator[tuple[ast.AST, Place]]:
    """Nodes in the order they run at import, then function bodies, which see every name of the module."""
    # Each step hands out a node or more steps. A stack of them, where the functions would call
    # each other, so that no expression is nested too deeply to be read.
    stack: list[_Steps] = [_Walk().run(tree)]
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
        elif isinstance(step, tuple):
            yield step
        else:
            stack.append(step)


def written(node: ast.AST | None) -> str:
    """``node`` as source, cut where it is long; what is too deep to be written is three dots."""
    if node is None:
        return "..."
    try:
        text = ast.unparse(node)
    except RecursionError:
        return "..."
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one]
    return [one.arg for one in every]


class _Walk:
    def __init__(self) -> None:
        self.later: deque[tuple[Function, Place]] = deque()

    def run(self, tree: ast.Module) -> _Steps:
        yield self.all(tree.body, Place(Scopes()))
        while self.later:
            function, place = self.later.popleft()
            body = [function.body] if isinstance(function, ast.Lambda) else function.body
            yield self.all(body, place)

    def all(self, nodes: Iterable[ast.AST | None], place: Place) -> _Steps:
        for node in nodes:
            if node is not None:
                yield self.one(node, place)

    def one(self, node: ast.AST, place: Place) -> _Steps:
        yield node, place
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield self.function(node, place)
        elif isinstance(node, ast.ClassDef):
            yield self.all([*node.decorator_list, *node.bases, *node.keywords], place)
            place.scopes.bind(ast.Name(node.name), None)
            yield self.all(node.body, replace(place, scopes=_ClassScopes.inside(place.scopes)))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            place.scopes.bind_import(node)
        elif isinstance(node, _COMPREHENSIONS):
            yield self.comprehension(node, place)
        elif isinstance(node, ast.If):
            yield self.one(node.test, place)
            main = place.only_main or _is_main_test(node.test)
            yield self.all(node.body, replace(place, only_main=main))
            yield self.all(node.orelse, place)
        else:
            for bound, value in _bindings(node):
                place.scopes.bind(bound, value)
            yield self.all(ast.iter_child_nodes(node), place)

    def function(self, node: Function, place: Place) -> _Steps:
        yield self.all([*node.args.defaults, *node.args.kw_defaults], place)
        inner = replace(place, scopes=place.scopes.inner(parameters(node)))
        if not isinstance(node, ast.Lambda):
            yield self.all(node.decorator_list, place)
            place.scopes.bind(ast.Name(node.name), None)
            inner = replace(inner, function=node)
        self.later.append((node, inner))

    def comprehension(self, node: ast.AST, place: Place) -> _Steps:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        names = [name for one in generators for name in bound_names(one.target)]
        yield self.all(ast.iter_child_nodes(node), replace(place, scopes=place.scopes.inner(names)))


class _ClassScopes(Scopes):
    """Scopes whose last one is a class body: its functions do not see the names in it."""

    @staticmethod
    def inside(scopes: Scopes) -> _ClassScopes:
        return _ClassScopes((*scopes.chain, Scope()))

    def inner(self, unknown: Iterable[str] = ()) -> Scopes:
        return Scopes((*self.chain[:-1], Scope(unknown)))


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """What a node assigns, each with its value where that is written beside it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        written_out = isinstance(node.iter, (ast.Tuple, ast.List)) and node.iter.elts
        yield node.target, node.iter.elts[0] if written_out else None  # type: ignore[attr-defined]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield ast.Name(node.name), None


def _is_main_test(test: ast.AST) -> bool:
    """``__name__ == "__main__"``, either way round."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [test.left, *test.comparators]
    return any(isinstance(one, ast.Name) and one.id == "__name__" for one in sides) and any(
        isinstance(one, ast.Constant) and one.value == "__main__" for one in sides
    )
