"""What the names in a Python file stand for: imports, aliases and constants, scope by scope.

``clock.perf_counter`` after ``import time as clock`` is ``time.perf_counter``, and so are
``getattr(time, "perf_" + "counter")`` and ``sys.modules["time"].perf_counter``. A parameter
or a local variable that merely shares a module's name is not that module.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator

__all__ = ["PATH_MAKERS", "TORCH_NAMESPACES", "UNKNOWN", "Scope", "Scopes", "bound_names", "root_name"]

# Stands in a known text for a part that is computed at run time.
UNKNOWN = "{}"
PATH_MAKERS = ("os.path.join", "pathlib.Path", "pathlib.PurePath")
# Of operators that torch itself defines.
TORCH_NAMESPACES = frozenset("_ aten prim prims quantized".split())
_PLACEHOLDER = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]")
_BRACES = re.compile(r"\{[^{}]*\}")
_BUILTINS = frozenset(dir(builtins))


class Scope:
    """One scope: what its names stand for, and the strings that some of them are."""

    def __init__(self, unknown: Iterable[str] = ()) -> None:
        self.names: dict[str, str | None] = dict.fromkeys(unknown)
        self.texts: dict[str, str] = {}


class Scopes:
    """The scopes in force at one place, the innermost last."""

    def __init__(self, chain: tuple[Scope, ...] = ()) -> None:
        self.chain = chain or (Scope(),)

    def inner(self, unknown: Iterable[str] = ()) -> Scopes:
        """These scopes and one inside them, in which the names ``unknown`` are local."""
        return Scopes((*self.chain, Scope(unknown)))

    # -- binding -----------------------------------------------------------------------------

    def bind_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Enter what an import statement brings in."""
        names = self.chain[-1].names
        for alias in node.names:
            if isinstance(node, ast.Import):
                dotted = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or dotted] = dotted
            elif node.level == 0:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            else:  # a file of the candidate's own
                names[alias.asname or alias.name] = None

    def bind(self, target: ast.AST, value: ast.AST | None) -> None:
        """Enter an assignment.

        A name that has been a module in this scope stays one: a later ``time = None``
        that may never run must not hide what was done to the module.
        """
        scope = self.chain[-1]
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            if len(target.elts) == len(value.elts):
                for one, its_value in zip(target.elts, value.elts, strict=True):
                    self.bind(one, its_value)
                return
            value = None
        known = self.dotted(value) if isinstance(target, ast.Name) else None
        text = self.text(value) if isinstance(target, ast.Name) else None
        for name in bound_names(target):
            if known or not scope.names.get(name):
                scope.names[name] = known
            scope.texts.pop(name, None)
            if text is not None:
                scope.texts[name] = text

    # -- reading -----------------------------------------------------------------------------

    def dotted(self, node: ast.AST | None) -> str | None:
        """The full dotted name that ``node`` stands for, or None."""
        try:
            return self._dotted(node)
        except RecursionError:
            return None  # nothing nested that deeply is the name of a thing

    def _dotted(self, node: ast.AST | None) -> str | None:
        if isinstance(node, ast.Name):
            for scope in reversed(self.chain):
                if node.id in scope.names:
                    return scope.names[node.id]
            return node.id if node.id in _BUILTINS or node.id == "__builtins__" else None
        if isinstance(node, ast.Attribute):
            return _joined(self._dotted(node.value), node.attr)
        if isinstance(node, ast.Call):
            return self._dotted_call(node)
        if isinstance(node, ast.Subscript):
            owner, key = self._dotted(node.value), self._text(node.slice)
            return _member(owner, key) if owner and key else None
        return None

    def _dotted_call(self, node: ast.Call) -> str | None:
        called = self._dotted(node.func)
        arguments = node.args
        if called == "getattr" and len(arguments) >= 2:
            name = self._text(arguments[1])
            return _joined(self._dotted(arguments[0]), name) if name else None
        if called == "id":
            return "id()"  # no name, but worth following into what takes it for an address
        if called == "torch.library.Library" and arguments:
            name = self._text(arguments[0])
            return f"{called}.{name}" if name in TORCH_NAMESPACES else None
        if called == "vars" and len(arguments) == 1:
            return _joined(self._dotted(arguments[0]), "__dict__")
        if called in ("importlib.import_module", "__import__") and arguments:
            name = self._text(arguments[0])
            return name.partition(".")[0] if name and called == "__import__" else name
        if called and called.endswith((".__dict__.get", "sys.modules.get")) and arguments:
            key = self._text(arguments[0])
            return _member(called.removesuffix(".get"), key) if key else None
        return None

    def text(self, node: ast.AST | None) -> str | None:
        """The string that ``node`` is known to be, with ``UNKNOWN`` for each part computed at run time.

        None where nothing of it is known.
        """
        try:
            return self._text(node)
        except RecursionError:
            return None

    def _text(self, node: ast.AST | None) -> str | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            for scope in reversed(self.chain):
                if node.id in scope.names:
                    return scope.texts.get(node.id)
        if isinstance(node, ast.BinOp):
            return self._operated(node)
        if isinstance(node, ast.JoinedStr):
            return "".join(map(self._part, node.values))
        return self._made(node) if isinstance(node, ast.Call) else None

    def _part(self, node: ast.AST) -> str:
        known = self._text(node.value if isinstance(node, ast.FormattedValue) else node)
        return UNKNOWN if known is None else known

    def _operated(self, node: ast.BinOp) -> str | None:
        """``"perf_" + "counter"``, ``"/proc/%d/mem" % pid``, ``Path("/proc") / pid / "mem"``."""
        left = self._text(node.left)
        if isinstance(node.op, ast.Mod):
            return _PLACEHOLDER.sub(UNKNOWN, left) if left is not None else None
        if not isinstance(node.op, (ast.Add, ast.Div)) or (left is None and self._text(node.right) is None):
            return None
        between = "/" if isinstance(node.op, ast.Div) else ""
        return f"{self._part(node.left)}{between}{self._part(node.right)}"

    def _made(self, node: ast.Call) -> str | None:
        """``"".join(("perf_", "counter"))``, ``"{}".format(x)``, ``os.path.join(a, b)``, ``Path(a)``."""
        called, arguments = self._dotted(node.func) or "", node.args
        if called in PATH_MAKERS:
            known = any(self._text(one) is not None for one in arguments)
            return "/".join(map(self._part, arguments)) if known else None
        if not isinstance(node.func, ast.Attribute):
            return None
        owner = self._text(node.func.value)
        if owner is None:
            return None
        if node.func.attr == "format":
            return _BRACES.sub(UNKNOWN, owner)
        if (
            node.func.attr == "join"
            and len(arguments) == 1
            and isinstance(arguments[0], (ast.Tuple, ast.List))
        ):
            return owner.join(map(self._part, arguments[0].elts))
        return None


def _joined(owner: str | None, name: str) -> str | None:
    return f"{owner}.{name}" if owner else None


def _member(owner: str, key: str) -> str | None:
    """``time.__dict__["sleep"]`` is ``time.sleep``; ``sys.modules["time"]`` is ``time``."""
    if owner == "sys.modules":
        return key
    if owner.endswith(".__dict__"):
        return f"{owner.removesuffix('.__dict__')}.{key}"
    return f"builtins.{key}" if owner == "__builtins__" else None


def bound_names(target: ast.AST | None) -> Iterator[str]:
    """Every plain name that an assignment to ``target`` binds."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for one in target.elts:
            yield from bound_names(one)
    elif isinstance(target, ast.Starred):
        yield from bound_names(target.value)


def root_name(node: ast.AST) -> str | None:
    """The plain name at the bottom of ``a.b[0].c()``, here ``a``."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
