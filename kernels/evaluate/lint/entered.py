"""Which functions of a file a call of ``ModelNew`` reaches with what is in its inputs, and by what names.

A shape, a length or a dtype is nothing that is in an input: a table that depends on those alone is
the same for every content.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernels.evaluate.lint.walk import parameters

__all__ = ["ENTRANCES", "Entered", "entered", "holds"]

ENTRANCES = ("__call__", "forward")
# What these say of a tensor is not what is in it.
_ABOUT = frozenset(
    "data_ptr device dim dtype element_size is_contiguous is_cuda itemsize layout nbytes ndim ndimension"
    " numel requires_grad shape size stride".split()
)
_ABOUT_CALLS = frozenset("hasattr id isinstance len type".split())
_NUMBERS = frozenset("bool float int str".split())


@dataclass(frozen=True)
class Entered:
    """``content``: by ``id`` of a function, the names in it that hold content. ``own``: where that begins."""

    content: dict[int, frozenset[str]]
    own: frozenset[int]


def entered(tree: ast.Module) -> Entered:
    """What a call of ``ModelNew`` enters: its own entrances, and what they hand content to."""
    return _Search(tree).run()


def holds(value: ast.AST | None, names: Iterable[str]) -> bool:
    """Whether ``value`` depends on what is in one of ``names``: ``x`` or ``self.x``, not ``x.shape``."""
    known = set(names)
    left = [value] if value is not None else []
    while left:
        node = left.pop()
        if isinstance(node, ast.Attribute) and node.attr in _ABOUT:
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ABOUT_CALLS:
            continue
        if _name(node) in known:
            return True
        left += ast.iter_child_nodes(node)
    return False


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


class _Search:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.classes = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.ClassDef)}
        self.owners = {id(one): owner for owner in self.classes.values() for one in _methods(owner)}
        self.functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        self.family = self._judged()
        self.given: dict[int, set[str]] = {}
        self.content: dict[int, frozenset[str]] = {}

    def run(self) -> Entered:
        # A function that is no method may be made one at run time.
        first = [
            one
            for one in ast.walk(self.tree)
            if isinstance(one, ast.FunctionDef) and one.name in ENTRANCES and id(one) not in self.owners
        ]
        first += [function for owner in self.family for function in _entrances(owner)]
        for function in first:
            self.given[id(function)] = {
                one.arg
                for one in ast.walk(function.args)
                if isinstance(one, ast.arg) and _name(one.annotation or one) not in _NUMBERS
            } - set(parameters(function)[:1])
        left = list(first)
        while left:
            function = left.pop()
            content = self._content(function)
            self.content[id(function)] = content
            for called, names in self._handed_on(function, content):
                before = self.given.setdefault(id(called), set())
                if not names <= before:
                    before |= names
                    left.append(called)
        return Entered(self.content, frozenset(id(one) for one in first))

    def _judged(self) -> list[ast.ClassDef]:
        """``ModelNew``, what it is another name of, and what it inherits from."""
        names, found = ["ModelNew"], {}
        for one in ast.walk(self.tree):
            if isinstance(one, ast.Assign) and any(_name(target) == "ModelNew" for target in one.targets):
                names += [name for name in map(_name, ast.walk(one.value)) if name]
        while names:
            owner = self.classes.get(names.pop())
            if owner is not None and owner.name not in found:
                found[owner.name] = owner
                names += [name for name in map(_name, owner.bases) if name]
        return list(found.values())

    def _content(self, function: ast.FunctionDef) -> frozenset[str]:
        """Names in ``function`` that hold content, by what is assigned to them."""
        names, size = set(self.given[id(function)]), -1
        pairs = list(_assigned(function))
        while size != len(names):
            size = len(names)
            for target, value in pairs:
                if holds(value, names):
                    names |= {name for name in map(_name, _targets(target)) if name}
        return frozenset(names)

    def _handed_on(
        self, function: ast.FunctionDef, content: frozenset[str]
    ) -> Iterator[tuple[ast.FunctionDef, set[str]]]:
        """Each function that ``function`` may call with content, and the parameters that get it."""
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            places = [i for i, one in enumerate(call.args) if holds(one, content)]
            words = {one.arg for one in call.keywords if holds(one.value, content)}
            if not places and not words:
                continue
            spread = None in words or any(isinstance(one, ast.Starred) for one in call.args)
            for called in self._called(call.func, function):
                names = parameters(called)[1 if id(called) in self.owners else 0 :]
                got = {name for i, name in enumerate(names) if spread or i in places or name in words}
                if places and max(places) >= len(names) and names:
                    got.add(names[-1])
                if got:
                    yield called, got

    def _called(self, func: ast.AST, function: ast.FunctionDef) -> list[ast.FunctionDef]:
        """What ``func``, written in ``function``, may be: a function, a method, or an instance's entrance."""
        if isinstance(func, ast.Name) and func.id in self.functions:
            return [self.functions[func.id]]
        owner = self.owners.get(id(function))
        own = (function.args.args[0].arg,) if owner is not None and function.args.args else ()
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in own:
            assert owner is not None
            family = self.family if owner in self.family else [owner]
            methods = [one for each in family for one in _methods(each) if one.name == func.attr]
            pairs = [pair for each in family for pair in _assigned(each)]
            return methods or self._instances(
                value for target, value in pairs if _attribute(target) == func.attr
            )
        if isinstance(func, ast.Attribute) and func.attr not in ENTRANCES:
            return []  # a method of something else: torch's, for the most part
        if isinstance(func, ast.Name) and func.id not in self._bound(function):
            return []
        # One of a list, a local or a global name: whatever is made here.
        return self._instances([*([owner] if owner is not None else []), *self._statements(), func])

    def _instances(self, places: Iterable[ast.AST]) -> list[ast.FunctionDef]:
        """The entrances of every class of this file of which ``places`` make an instance."""
        calls = [one for place in places for one in ast.walk(place) if isinstance(one, ast.Call)]
        names = {_name(one.func) for one in calls}
        return [one for name in self.classes if name in names for one in _entrances(self.classes[name])]

    def _bound(self, function: ast.FunctionDef) -> set[str | None]:
        """Names that something is assigned to, in ``function`` or for the whole file."""
        pairs = [*_assigned(function), *(pair for one in self._statements() for pair in _assigned(one))]
        return {_name(name) for target, _ in pairs for name in _targets(target)}

    def _statements(self) -> list[ast.stmt]:
        """What the file runs itself."""
        return [one for one in self.tree.body if not isinstance(one, (ast.FunctionDef, ast.ClassDef))]


def _methods(owner: ast.ClassDef) -> list[ast.FunctionDef]:
    return [one for one in owner.body if isinstance(one, ast.FunctionDef)]


def _entrances(owner: ast.ClassDef) -> list[ast.FunctionDef]:
    return [one for one in _methods(owner) if one.name in ENTRANCES]


def _attribute(target: ast.AST) -> str | None:
    return target.attr if isinstance(target, ast.Attribute) else None


def _assigned(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every target and its value."""
    for one in ast.walk(tree):
        if isinstance(one, ast.Assign):
            for target in one.targets:
                yield target, one.value
        elif isinstance(one, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and one.value is not None:
            yield one.target, one.value
        elif isinstance(one, (ast.For, ast.comprehension)):
            yield one.target, one.iter
        elif isinstance(one, ast.withitem) and one.optional_vars is not None:
            yield one.optional_vars, one.context_expr


def _targets(target: ast.AST) -> list[ast.AST]:
    """The names in a target; of an element, what it is an element of."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for one in target.elts for name in _targets(one)]
    if isinstance(target, (ast.Subscript, ast.Starred)):
        return _targets(target.value)
    return [target]
