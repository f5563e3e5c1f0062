"""What can be evaluated, said in one line before any process is started."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernels.evaluate.status import Status
from kernels.evaluate.subject import Unusable, find_target, sources_of
from kernels.evaluate.syntax import parse

REFERENCE = "class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n"
CANDIDATE = "class ModelNew: pass\n"


def files(folder: Path, reference: str = REFERENCE, candidate: str = CANDIDATE) -> tuple[str, str]:
    one, other = folder / "ref.py", folder / "cand.py"
    one.write_text(reference)
    other.write_text(candidate)
    return str(one), str(other)


def test_two_files(tmp_path: Path) -> None:
    target = find_target("", *files(tmp_path))
    assert target.subject.kind == "files"
    assert target.subject.candidate[0].text == CANDIDATE
    assert len(target.subject.reference[0].sha256) == 64
    assert not target.reference_draws


@pytest.mark.parametrize(
    "text",
    [
        "from there import ModelNew",
        "from there import *",
        "import there\nModelNew = there.Fast",
        "if True:\n    class ModelNew: pass",
        "try:\n    from a import X as ModelNew\nexcept ImportError:\n    ModelNew = None",
        "globals()['Model' + 'New'] = int",
        "class ModelNew:\n    def forward(self): pass",
    ],
)
def test_ways_to_have_a_model_new(text: str, tmp_path: Path) -> None:
    assert find_target("", *files(tmp_path, candidate=text)).candidate


@pytest.mark.parametrize(
    ("reference", "candidate", "status", "said"),
    [
        (REFERENCE, "class Model: pass", Status.INVALID_CANDIDATE, "has no ModelNew"),
        (REFERENCE, "def f():\n    class ModelNew: pass", Status.INVALID_CANDIDATE, "has no ModelNew"),
        (REFERENCE, "x = 1\ndef broken(:\n", Status.INVALID_CANDIDATE, "line 2: syntax error"),
        (REFERENCE, "class ModelNew: pass\x00", Status.INVALID_CANDIDATE, "cand.py"),
        ("class Model: pass", CANDIDATE, Status.INVALID_REFERENCE, "no get_inputs and no get_init_inputs"),
        ("def f(:", CANDIDATE, Status.INVALID_REFERENCE, "line 1: syntax error"),
    ],
)
def test_files_that_cannot_be_evaluated(
    reference: str, candidate: str, status: Status, said: str, tmp_path: Path
) -> None:
    with pytest.raises(Unusable, match=said) as raised:
        find_target("", *files(tmp_path, reference, candidate))
    assert raised.value.status == status
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    one, _ = files(tmp_path)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.py", tmp_path, tmp_path / "binary.py"):
        with pytest.raises(Unusable, match="cannot be read") as raised:
            find_target("", one, str(path))
        assert raised.value.status == Status.INVALID_CANDIDATE


def test_a_package_lists_its_files_and_kernels() -> None:
    target = find_target("gqa_attn")
    paths = [source.path for source in target.subject.candidate]
    assert "kernels/cpu/gqa_attn/vectorised.cpp" in paths
    assert "kernels/bindings/gqa_attn.cpp" in paths
    assert target.subject.kind == "package"


def test_a_package_with_another_candidate(tmp_path: Path) -> None:
    _, candidate = files(tmp_path)
    target = find_target("gqa_attn", candidate=candidate)
    assert target.package == "gqa_attn"
    assert [source.path for source in target.subject.candidate] == [candidate]


@pytest.mark.parametrize(
    "words", [("", "", ""), ("", "ref.py", ""), ("", "", "cand.py"), ("gqa_attn", "ref.py", ""), ("nowhere",)]
)
def test_words_that_name_no_subject(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"give|package"):
        find_target(*words)


def test_popcorn_is_seen(tmp_path: Path) -> None:
    drawing = "N = popcorn_pri.jitter_int(3)\n"
    target = find_target("", *files(tmp_path, drawing + REFERENCE, CANDIDATE))
    assert target.reference_draws
    assert not target.candidate_draws


def test_sources_of_a_name(tmp_path: Path) -> None:
    one, _ = files(tmp_path)
    assert sources_of(one)[0].text == REFERENCE
    assert len(sources_of("gqa_attn")) > 5
    with pytest.raises(ValueError, match="cannot be read"):
        sources_of(str(tmp_path / "missing.py"))


@pytest.mark.parametrize("package", ["gqa_attn", "fp8_attn"])
def test_a_package_shows_the_code_that_runs_once(package: str) -> None:
    """The kernels lie in headers: a report whose digests left them out would not tell two kernels apart."""
    subject = find_target(package).subject
    assert [source.path for source in subject.reference] == [
        f"{package}/inputs.py",
        f"{package}/reference.py",
    ]
    paths = [source.path for source in subject.candidate]
    for header in ("cpu/attention/vectorised.h", "cuda/attention/short.cuh", "bindings/attention.h"):
        assert f"kernels/{header}" in paths
    assert {f"{package}/model_new.py", f"kernels/cpu/{package}/vectorised.cpp"} <= set(paths)
    both = [source.path for source in (*subject.reference, *subject.candidate)]
    assert len(both) == len(set(both)) == len(sources_of(package))


def test_a_package_with_headers_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "scaled_attn"
    package.mkdir()
    for name, text in {
        "__init__.py": "from .problem import PROBLEM\n",
        "problem.py": "from .model_new import ModelNew\n",
        "model_new.py": "ModelNew = None\n",
        "inputs.py": "from .shapes import SHAPES\n",
        "shapes.py": "SHAPES = ()\n",
        "kernel.cpp": '#include "kernel.h"\n#include "cpu/attention/types.h"\n',
        "kernel.h": "int kernel();\n",
    }.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    subject = find_target("scaled_attn").subject
    assert [Path(source.path).name for source in subject.reference] == ["inputs.py", "shapes.py"]
    assert [source.path for source in subject.candidate] == [
        *(f"scaled_attn/{name}" for name in ("__init__.py", "kernel.cpp", "kernel.h")),
        *(f"scaled_attn/{name}" for name in ("model_new.py", "problem.py")),
        "kernels/cpu/attention/types.h",
    ]


def test_a_tree_that_another_thread_disturbed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, answers = ast.parse, [SystemError("AST constructor recursion depth mismatch"), None]

    def disturbed(text: str, filename: str = "") -> ast.Module:
        error = answers.pop(0)
        if error is not None:
            raise error
        return made(text, filename=filename)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert len(parse("x = 1\ny = 2").body) == 2 and answers == []
