"""Who may import whom, and what an import must not do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.discover import problem_packages

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = problem_packages([ROOT])

# For each part of `kernels`, the parts it may import; itself and the standard library always.
# `cli` may import every part; nothing imports `cli`.
BASE = {"errors", "problem", "device", "toolchain", "paths", "discover", "attention", "layouts"}
BASE |= {"includes", "variables"}
MAY_IMPORT = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "discover": set(),
    "includes": set(),
    "problem": {"errors", "discover"},
    "device": {"errors"},
    "toolchain": {"errors", "device", "paths"},
    "attention": {"errors"},
    "attention_variants": {"attention", "device", "problem"},
    "layouts": {"errors"},
    "fallback": {"errors", "variables"},
    "variables": set(),
    "paths": {"errors"},
    "jit": BASE - {"attention", "layouts", "discover"},
    "evaluate": {"errors", "problem", "device", "discover", "includes", "paths"},
    # Results only, and what `evaluate` calls a result.
    "report": {"errors", "evaluate.result", "evaluate.evaluation", "evaluate.status"},
    "startup": {*BASE, "jit", "evaluate"},
    "cli": {*BASE, "jit", "evaluate", "report", "startup", "__init__"},
}


def _modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    """Every module a file imports, in full; what only a type checker sees is left out."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    package = package.removesuffix(".__init__") if path.name == "__init__.py" else package.rpartition(".")[0]
    yield from _walk(ast.parse(path.read_text(encoding="utf-8")), package)


def _walk(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        # `from kernels import errors` imports kernels.errors; `from kernels.errors import X` imports no X.
        yield from (
            f"{base}.{alias.name}" if (ROOT / Path(*base.split("."))).is_dir() else base
            for alias in node.names
        )
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package)


def _part(path: Path) -> str:
    return path.relative_to(ROOT / "kernels").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", _modules(ROOT / "kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_layers_of_kernels(path: Path) -> None:
    part = _part(path)
    assert part in MAY_IMPORT, f"say in {Path(__file__).name} what kernels/{part} may import"
    for name in _imports(path):
        top, _, rest = name.partition(".")
        assert top not in PROBLEMS, f"{path} imports {name}: problem packages are loaded by name"
        if top != "kernels" or not rest:
            continue
        allowed = MAY_IMPORT[part] | {part}
        parts = rest.split(".")
        reached = {parts[0], ".".join(parts[:2])}
        known = reached & allowed or (parts[0] not in MAY_IMPORT and "__init__" in allowed)
        assert known, f"{path} imports {name}; kernels/{part} may import {sorted(allowed)}"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problem_packages_do_not_import_each_other(problem: str) -> None:
    for path in _modules(ROOT / problem):
        for name in _imports(path):
            assert name.partition(".")[0] not in set(PROBLEMS) - {problem}, f"{path} imports {name}"
            assert not name.startswith(("kernels.cli", "kernels.report", "kernels.evaluate")), (
                f"{path} imports {name}"
            )


DEVICE_SOURCES = sorted(
    path for kind in ("*.cu", "*.cuh", "*.cpp", "*.h") for path in (ROOT / "kernels").rglob(kind)
)


def test_there_are_device_sources() -> None:
    assert {path.suffix for path in DEVICE_SOURCES} >= {".cu", ".cuh", ".cpp", ".h"}


@pytest.mark.parametrize("path", DEVICE_SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_of_device_code(path: Path) -> None:
    """Kernel sources see no torch header and no other problem's folder; bindings see no CUDA header."""
    text = path.read_text(encoding="ascii")
    own = path.relative_to(ROOT / "kernels").parts
    for included in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE):
        if own[0] == "bindings":
            assert not included.startswith(("cuda", "cpu/")), f"{path} includes {included}"
        else:
            assert not re.match(r"(torch|ATen|c10)/", included), f"{path} includes {included}"
            others = set(PROBLEMS) - {own[1]}
            assert not others & set(Path(included).parts), f"{path} includes {included}"
            other_device = {"cuda": "cpu/", "cpu": "cuda/"}[own[0]]
            assert not included.startswith(other_device), f"{path} includes {included}"


def _loaded_by(statement: str) -> set[str]:
    """Names of the modules a fresh interpreter has loaded after ``statement``."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import kernels", "import kernels.errors", "import kernels.cli", "import kernels.toolchain"]
)
def test_kernels_is_inert(statement: str) -> None:
    loaded = _loaded_by(statement)
    assert "kernels" in loaded
    assert not loaded & {"torch", "rich", "numpy", "ninja", *PROBLEMS}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problem_package_is_inert(problem: str) -> None:
    loaded = _loaded_by(f"import {problem}")
    assert problem in loaded
    assert not {name for name in loaded if name.startswith((f"{problem}.", "kernels.", "torch"))}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_importing_a_problem_package_starts_no_build(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELS_PREBUILD", raising=False)
    loaded = _loaded_by(f"import {problem}; import threading; assert threading.active_count() == 1")
    assert problem in loaded
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("module", ["kernels", *PROBLEMS])
def test_all_names_exist(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_PREBUILD", "0")
    package = __import__(module)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))


def test_problem_packages_are_found_by_looking(tmp_path: Path) -> None:
    for name, init, module in (
        ("mine", '_HOME = {"PROBLEM": "problem"}', "from kernels.problem import Problem"),
        ("no_toolkit", "PROBLEM = 3", ""),
        ("no_problem", "", "from kernels.problem import Problem"),
        ("not-a-name", "PROBLEM = 3", "from kernels.problem import Problem"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(init)
        (tmp_path / name / "problem.py").write_text(module)
    assert problem_packages([tmp_path]) == ("mine",)
    assert problem_packages([tmp_path, ROOT]) == tuple(sorted({"mine", *PROBLEMS}))
    assert {"gqa_attn", "fp8_attn"} <= set(PROBLEMS)
