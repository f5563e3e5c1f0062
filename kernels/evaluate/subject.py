"""What is evaluated: a problem package, or two files in KernelBench form; read and checked as text.

Nothing is imported here. A file that cannot be what it should is said in one line, with
the status that goes with it, before any process is started.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernels.discover import problem_packages
from kernels.errors import KernelsError
from kernels.evaluate.evaluation import Source, Subject
from kernels.evaluate.status import Status
from kernels.evaluate.syntax import parse
from kernels.evaluate.workers.popcorn import NAME as POPCORN
from kernels.includes import included

__all__ = ["Target", "Unusable", "find_target", "sources_of"]

_REFERENCE_NEEDS = ("Model", "get_inputs", "get_init_inputs")
_KERNELS = Path(__file__).resolve().parent.parent
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".h")
_KERNEL_PATH = re.compile(r"""["']((?:bindings|cpu|cuda)/[\w./-]+\.(?:cu|cuh|cpp|h))["']""")

_RELATIVE_IMPORT = re.compile(r"^\s*from\s+\.(\w+)\s+import\b", re.MULTILINE)


class Unusable(KernelsError):
    """A subject that cannot be evaluated. ``status`` says whose fault; the message is one line."""

    def __init__(self, status: Status, message: str, subject: Subject) -> None:
        super().__init__(message)
        self.status = status
        self.subject = subject


@dataclass(frozen=True)
class Target:
    """What to load on each side: a package's name or a file's path, one of them empty.

    ``reference_draws`` and ``candidate_draws``: the file uses ``popcorn_pri``, so it is read
    anew in every trial.
    """

    subject: Subject
    package: str = ""
    reference: str = ""
    candidate: str = ""
    reference_draws: bool = False
    candidate_draws: bool = False


def find_target(
    package: str = "", reference: str = "", candidate: str = "", *, candidate_needed: bool = True
) -> Target:
    """The subject of ``package``, of two files, or of a package's problem and a candidate file.

    Raises ``ValueError`` for a combination that is none of these or a package that is not
    there, and :class:`Unusable` for a file that cannot be evaluated. Without
    ``candidate_needed`` a reference alone will do.
    """
    if package and reference:
        raise ValueError("a package brings its own reference; give PACKAGE [--candidate FILE] or two files")
    if not package and not (reference and (candidate or not candidate_needed)):
        raise ValueError("give a PACKAGE, or both --reference FILE and --candidate FILE")
    if package:
        theirs, ours = _package_sources(package)
    else:
        theirs, ours = _file_source(reference, "reference"), ()
    if candidate:
        ours = _file_source(candidate, "candidate")
    name = package or Path(reference).stem
    if candidate:
        name = f"{name} / {Path(candidate).stem}"
    subject = Subject(name, "package" if package else "files", theirs, ours)
    if reference:
        _check(theirs[0], _REFERENCE_NEEDS, Status.INVALID_REFERENCE, subject)
    if candidate:
        _check(ours[0], ("ModelNew",), Status.INVALID_CANDIDATE, subject)
    return Target(
        subject,
        package,
        str(Path(reference).resolve()) if reference else "",
        str(Path(candidate).resolve()) if candidate else "",
        bool(reference) and POPCORN in theirs[0].text,
        bool(candidate) and POPCORN in ours[0].text,
    )


def sources_of(name: str) -> tuple[Source, ...]:
    """A file, or every source of a problem package. Raises ``ValueError``."""
    if name.isidentifier() and not Path(name).is_file():
        return tuple(source for side in _package_sources(name) for source in side)
    try:
        return (_source(Path(name), name),)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error


def _file_source(path: str, role: str) -> tuple[Source, ...]:
    try:
        return (_source(Path(path), path),)
    except (OSError, ValueError) as error:
        status = Status.INVALID_REFERENCE if role == "reference" else Status.INVALID_CANDIDATE
        why = error.strerror if isinstance(error, OSError) else str(error)
        empty = Source(path, "", "")
        sides = ((empty,), ()) if role == "reference" else ((), (empty,))
        raise Unusable(
            status, f"{path}: the {role} cannot be read: {why}", Subject(Path(path).stem, "files", *sides)
        ) from error


def _package_sources(package: str) -> tuple[tuple[Source, ...], tuple[Source, ...]]:
    """The sources of the package's reference, and all others that its ``ModelNew`` may run.

    Those are the rest of the package, the sources below ``kernels/`` that its text names, and
    what these include. Each file is on one side alone.
    """
    folder = _package_folder(package)
    own = sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES)
    theirs = _of_the_reference(folder)
    named = {
        _KERNELS / found
        for path in own
        for found in _KERNEL_PATH.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
    compiled = {path for path in {*own, *named} if path.suffix != ".py" and path.is_file()}
    compiled |= {header for path in compiled for header in included(path)}
    ours = [*(path for path in own if path not in theirs), *sorted(compiled.difference(own))]
    first, second = (
        tuple(_source(path, _short(path, folder.parent)) for path in paths) for paths in (theirs, ours)
    )
    return first, second


def _of_the_reference(folder: Path) -> list[Path]:
    """The package's reference and inputs, and the modules of it that these import."""
    found: list[Path] = []
    waiting = [folder / "inputs.py", folder / "reference.py"]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.append(path)
        names = _RELATIVE_IMPORT.findall(path.read_text(encoding="utf-8", errors="replace"))
        waiting += [folder / f"{name}.py" for name in names]
    return sorted(found)


def _package_folder(package: str) -> Path:
    """Where the problem package is; nothing of it is imported. Raises ``ValueError``."""
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    places = list(found.submodule_search_locations or ()) if found else []
    if not places or "PROBLEM" not in (Path(places[0]) / "__init__.py").read_text(encoding="utf-8"):
        there = ", ".join(problem_packages()) or "none"
        raise ValueError(f"no problem package {package!r}; here are: {there}")
    return Path(places[0])


def _short(path: Path, beside: Path) -> str:
    for base in (beside, _KERNELS.parent):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)


def _source(path: Path, name: str) -> Source:
    data = path.read_bytes()
    return Source(name, hashlib.sha256(data).hexdigest(), data.decode("utf-8"))


def _check(source: Source, needs: Iterable[str], status: Status, subject: Subject) -> None:
    """Raises :class:`Unusable` unless the text parses and binds each of ``needs`` at its top level."""
    try:
        tree = parse(source.text, source.path)
    except SyntaxError as error:
        raise Unusable(
            status, f"{source.path}, line {error.lineno or 0}: syntax error: {error.msg}", subject
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unusable(status, f"{source.path}: cannot be parsed: {error}", subject) from error
    names, open_ended = _bound(tree)
    missing = [name for name in needs if name not in names]
    if missing and not open_ended:
        raise Unusable(status, f"{source.path}: has no {' and no '.join(missing)}", subject)


def _bound(tree: ast.Module) -> tuple[set[str], bool]:
    """The names the module binds outside functions and classes; and whether a ``*`` import may bind more."""
    names: set[str] = set()
    open_ended = False
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            open_ended |= any(alias.name == "*" for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            # `globals()[...] = ` and `exec` bind what no reader of the text can tell.
            open_ended |= isinstance(node, ast.Name) and node.id in ("globals", "exec")
            waiting.extend(ast.iter_child_nodes(node))
    return names, open_ended
