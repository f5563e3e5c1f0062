"""``python -m kernels``: every verb, its exit codes, and tables that stay readable at 80 columns."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from kernels import cli
from kernels.cli import files
from kernels.cli.subjects import spec_of
from kernels.errors import CompileError, ToolchainError
from kernels.evaluate.result import (
    BenchResult,
    BenchRow,
    CheckRow,
    Comparison,
    Environment,
    Lead,
    OracleComparison,
    StartupResult,
    StartupRow,
    Timing,
)
from kernels.jit.build import Built, Resources
from kernels.jit.cache import Entry, Pruned
from kernels.jit.spec import KernelSpec
from kernels.problem import Case, Problem
from kernels.report import bench as bench_tables
from kernels.report import tables, terminal
from kernels.toolchain import Check

ROOT = Path(__file__).resolve().parent.parent


def run(*words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a person types it."""
    return subprocess.run(
        [sys.executable, "-m", "kernels", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# -- parsing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["--help"], ["check", "--help"], ["cache", "--help"], ["bench", "--help"], ["--version"]]
)
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(words)
    assert exited.value.code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "COMMAND"),
        (["dance"], "invalid choice"),
        (["cache"], "ACTION"),
        (["check", "--trials", "-1"], "-1 is below 0"),
        (["evaluate", "gqa_attn", "--trials", "-1"], "-1 is below 1"),
        (["evaluate", "gqa_attn", "--trials", "0"], "0 is below 1"),
        (["bench", "gqa_attn", "--shape", "seqlen"], "'seqlen' is not NAME=VALUE"),
        (["bench", "gqa_attn", "--shape", "seqlen=many"], "'seqlen=many' is not NAME=VALUE"),
        (["bench", "gqa_attn", "--shapes", "some"], "invalid choice"),
        (["bench", "gqa_attn", "--limit", "0"], "0 is not above 0"),
        (["bench", "gqa_attn", "--seconds", "nan"], "nan is not above 0"),
    ],
)
def test_words_that_do_not_parse(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(words)
    assert exited.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "nothing_here"], "no problem package 'nothing_here'"),
        (["check", "tests"], "'tests'"),
        (["build", "gqa_attn", "--arch", "hopper"], "'hopper' is no CUDA architecture"),
        (
            ["build", "gqa_attn", "--dtype", "int4"],
            "dtype=int4 is not supported; supported: float32, float64, float16, bfloat16",
        ),
        (["build", "gqa_attn", "--head-dim", "300"], "head_dim=300 is not supported; supported: 1 to 256"),
        (["build", "fp8_attn", "--head-dim", "0"], "head_dim=0 is not supported; supported: 1 to 256"),
        (["build", "gqa_attn", "--head-dim", "-4"], "head_dim=-4 is not supported; supported: 1 to 256"),
        (
            ["bench", "gqa_attn", "--dtype", "int8"],
            "dtype=int8 is not supported; supported: float32, float64, float16, bfloat16",
        ),
        (["bench", "fp8_attn", "--shape", "head_dim=300"], "head_dim=300 is not supported; supported: 1 to"),
        (
            ["bench", "gqa_attn", "--shape", "num_heads=3"],
            "num_heads=3 of q is not a multiple of num_kv_heads=2 of k and v",
        ),
        (["bench", "gqa_attn", "--shape", "num_kv_heads=0"], "is not a multiple of num_kv_heads=0"),
        (["bench", "gqa_attn", "--shape", "width=3"], "no 'width' in its shape"),
        (
            ["bench", "fp8_attn", "--shape", "num_kv_heads=2"],
            "no 'num_kv_heads' in its shape; it has: seqlen, batch, num_heads, head_dim",
        ),
        (
            ["bench", "gqa_attn", "--shapes", "table", "--shape", "seqlen=8"],
            "--shapes table does not go with it",
        ),
        (
            ["bench", "fp8_attn", "--shapes", "table", "--dtype", "float16"],
            "no table in dtype float16; its bench_cases have: int8, float8_e4m3fn",
        ),
        (
            ["check", "gqa_attn", "--device", "cpu", "--variant", "dance"],
            "gqa_attn has no variant 'dance' for cpu; it has: hopper_fast (cuda), hopper (cuda), ",
        ),
        (["bench", "fp8_attn", "--device", "cpu", "--variant", "portable"], "no variant 'portable' for cpu"),
        (
            ["build", "gqa_attn", "--arch", "8.0", "--variant", "hopper"],
            "variant 'hopper' does not serve dtype=float32, head_dim=32, group_size=4 on cuda (sm_80)",
        ),
        (
            ["bench", "--reference", "a.py", "--candidate", "b.py", "--variant", "hopper"],
            "--variant hopper is of a PACKAGE",
        ),
        (["bench", "jit", "--variant", "hopper"], "--variant does not go with jit"),
        (["bench", "jit", "nothing_here"], "no problem package 'nothing_here'"),
    ],
)
def test_words_that_ask_for_what_is_not_there(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ") and said in shown.err
    assert shown.err.count("\n") == 1, "an error is one line"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("verb", ["check", "bench"])
def test_asking_for_a_gpu_where_there_is_none(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "gqa_attn", "--device", "cuda"]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ToolchainError("no C++ compiler found", "apt-get install g++"), 1, "fix: apt-get install g++"),
        (CompileError("gqa_attn-portable", "error: expected ';'"), 1, "expected ';'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failures_are_words_not_tracebacks(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(specs: object) -> None:
        raise error

    monkeypatch.setattr("kernels.jit.load.obtain_all", fail)
    assert cli.main(["build", "gqa_attn"]) == code
    assert said in capsys.readouterr().err


# -- check -------------------------------------------------------------------------------------


def test_check_builds_and_passes(built: None) -> None:
    done = run("check", "--device", "cpu", "--trials", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASS") == 4
    for words in ("gqa_attn", "fp8_attn", "cpu, vectorised", "B2 T80 H8/2 D32", "int8", "4 of 4 passed"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.gpu
def test_check_covers_the_gpu() -> None:
    done = run("check", "--trials", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("cuda, ") == done.stdout.count("cpu, ") == 4


def test_check_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernels.evaluate import check

    def run_one(trial: check.Trial) -> CheckRow:
        return check.failed(trial, "3 of 15 elements differ; the first at (0, 4)")

    monkeypatch.setattr(check, "run", run_one)
    monkeypatch.setattr(check, "prepare", lambda trials, build: [""] * len(trials))
    assert cli.main(["check", "gqa_attn", "--device", "cpu", "--trials", "0"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL 1" in shown and "3 of 15 elements differ; the first at (0, 4)" in shown
    assert "0 of 1 passed" in shown


def test_check_reports_what_does_not_build(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(specs: object) -> None:
        raise ToolchainError("no C++ compiler found", "apt-get install g++")

    monkeypatch.setattr("kernels.jit.load.obtain_all", fail)
    assert cli.main(["check", "--device", "cpu", "--trials", "0"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("fix: apt-get install g++") == 2
    assert "0 of 2 passed" in shown


def test_a_new_problem_package_is_found_and_checked(tmp_path: Path, built: None) -> None:
    """Adding a problem is copying a folder: no list anywhere names it."""
    package = tmp_path / "my_attn"
    shutil.copytree(ROOT / "gqa_attn", package, ignore=shutil.ignore_patterns("__pycache__"))
    binding = (ROOT / "kernels" / "bindings" / "gqa_attn.cpp").read_text()
    (package / "binding.cpp").write_text(binding.replace("gqa_attn", "my_attn"))
    for name, old, new in (
        ("problem.py", 'name="gqa_attn"', 'name="my_attn"'),
        ("problem.py", '"bindings/gqa_attn.cpp"', repr(str(package / "binding.cpp"))),
        ("model_new.py", '    "gqa_attn",\n    _problem', '    "my_attn",\n    _problem'),
    ):
        text = (package / name).read_text()
        assert old in text
        (package / name).write_text(text.replace(old, new))
    listed = subprocess.run(
        [sys.executable, "-c", "from kernels.discover import problem_packages; print(*problem_packages())"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == ["fp8_attn", "gqa_attn", "my_attn"]
    done = run("check", "my_attn", "--device", "cpu", "--trials", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my_attn" in done.stdout and "1 of 1 passed" in done.stdout


def test_a_log_says_what_is_done_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A judge may be at work for minutes; a line in two seconds at most."""
    from kernels.cli import evaluate

    seconds = iter([100.0, 100.0, 101.0, 102.5, 200.0])
    monkeypatch.setattr(evaluate, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with evaluate._progress() as progress:
        for words in ("start", "load the reference", "correctness", "timing"):
            progress(words)
    assert capsys.readouterr().err.splitlines() == ["[0 s] start", "[2 s] correctness", "[100 s] timing"]


def test_a_package_that_was_copied_and_not_renamed_is_told_what_to_rename(tmp_path: Path) -> None:
    """One step of the README at a time; in no state does another problem's operator answer for it."""
    package = tmp_path / "my_attn"
    shutil.copytree(ROOT / "gqa_attn", package, ignore=shutil.ignore_patterns("__pycache__"))
    words = "check gqa_attn my_attn --device cpu --trials 0".split()
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert "package 'my_attn' has PROBLEM.name='gqa_attn'" in done.stderr
    for name, old, new in (
        ("problem.py", 'name="gqa_attn"', 'name="my_attn"'),
        ("model_new.py", '    "gqa_attn",\n    _problem', '    "my_attn",\n    _problem'),
    ):
        (package / name).write_text((package / name).read_text().replace(old, new))
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    squeezed = " ".join(done.stdout.split())
    assert "1 of 2 passed" in squeezed
    said = "the binding bindings/gqa_attn.cpp registers no operator kernelwright::my_attn; copy it, rename"
    assert said in squeezed and "in binding= of my_attn/problem.py" in squeezed


# -- files to be written -----------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """Two files to judge, the candidate without a ModelNew: the verdict is there at once."""
    reference, candidate = tmp_path / "ref.py", tmp_path / "cand.py"
    reference.write_text("class Model: pass\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n")
    candidate.write_text("x = 1\n")
    return ["--device", "cpu", "--reference", str(reference), "--candidate", str(candidate)]


@pytest.mark.parametrize("verb", ["evaluate", "specs", "lint"])
def test_a_file_that_cannot_be_written_is_said_before_the_work(
    verb: str,
    pair: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(*arguments: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("kernels.evaluate.judge.unusable", work)
    monkeypatch.setattr("kernels.evaluate.specs.specs", work)
    monkeypatch.setattr("kernels.evaluate.lint.lint_sources", work)
    words = [verb, *(pair[2:] if verb == "lint" else pair)]
    missing = tmp_path / "nowhere" / "out"
    for option in ["--json"] if verb == "lint" else ["--json", "--html"]:
        assert cli.main([*words, option, str(missing)]) == 2
        assert f"error: {missing} cannot be written: there is no folder" in capsys.readouterr().err
        assert cli.main([*words, option, str(tmp_path)]) == 2
        assert f"error: {tmp_path} cannot be written: it is a folder" in capsys.readouterr().err
    assert not missing.parent.exists()


def test_looking_whether_a_file_can_be_written_leaves_it_as_it_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("what was there")
    files.check_writable(str(old), str(new), None, "", "/dev/null")
    assert old.read_text() == "what was there" and list(tmp_path.iterdir()) == [old]
    with pytest.raises(files.UsageError, match="is to be written twice"):
        files.check_writable(str(new), str(tmp_path / "." / "new.json"))


def test_a_file_that_cannot_be_written_any_more_costs_nothing_else(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is shown and the other file written; then the error is said."""
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()
    report = tmp_path / "gone" / "report.json"
    report.parent.mkdir()

    def taken_away(path: str, text: str) -> None:
        if path == str(report):
            raise OSError(28, "No space left on device")
        write_file(path, text)

    write_file = files.write_file
    monkeypatch.setattr(files, "write_file", taken_away)
    assert cli.main(["evaluate", *pair, "--json", str(report), "--html", str(page)]) == 2
    shown = capsys.readouterr()
    assert "INVALID_CANDIDATE" in shown.out
    assert "INVALID_CANDIDATE" in page.read_text()
    assert shown.err.splitlines()[-1] == f"error: {report} cannot be written: No space left on device"
    monkeypatch.setattr(files, "write_file", write_file)
    assert cli.main(["evaluate", *pair, "--json", str(report)]) == 1
    assert json.loads(report.read_text())["status"] == "INVALID_CANDIDATE"


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    from kernels.paths import replace_file, write_file

    path = tmp_path / "report.json"
    write_file(str(path), "old")
    with pytest.raises(UnicodeEncodeError):
        write_file(str(path), "\ud800")
    assert path.read_text() == "old"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert not replace_file(str(folder), "new")
    assert sorted(tmp_path.iterdir()) == [folder, path], "nothing half-written stays"


# -- doctor ------------------------------------------------------------------------------------


def test_doctor_on_this_machine() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kernels can be built here" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_doctor_names_the_fix(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        Check("C++ compiler", False, True, "none found", "apt-get install g++"),
        Check("CUDA compiler", False, False, "none found", "pip install -e '.[cuda]'"),
        Check("ninja", True, True, "1.13", ""),
    ]
    monkeypatch.setattr("kernels.toolchain.diagnose", lambda: checks)
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    for words in (
        "MISSING",
        "fix: apt-get install g++",
        "note",
        "fix: pip install -e '.[cuda]'",
        "1 required check",
    ):
        assert words in shown
    checks[0] = dataclasses.replace(checks[0], ok=True)
    assert cli.main(["doctor"]) == 0


# -- build and cache -----------------------------------------------------------------------------


def test_build_for_the_cpu_prints_what_was_built(built: None, capsys: pytest.CaptureFixture[str]) -> None:
    from kernels.device import cpu_arch

    assert cli.main(["build", "gqa_attn", "--dtype", "float32", "float64"]) == 0
    shown = capsys.readouterr().out
    for words in ("gqa_attn, binding", "gqa_attn, vectorised", cpu_arch(), "float32", "float64"):
        assert words in shown


def test_verbs_that_show_kernels_look_at_the_default_inputs_alone() -> None:
    """A library for each shape that is drawn would take long, and its kernels would hide those asked for."""
    from kernels import cli

    for verb, trials in (("evaluate", 5), ("profile", 0), ("sass", 0), ("roofline", 0)):
        assert cli._parser().parse_args([verb, "gqa_attn"]).trials == trials
    assert cli._parser().parse_args(["sass", "gqa_attn", "--trials", "3"]).trials == 3


def test_build_without_a_gpu_reports_resources(capsys: pytest.CaptureFixture[str]) -> None:
    from kernels.toolchain import find_cuda

    try:
        find_cuda()
    except ToolchainError as missing:
        pytest.skip(f"no nvcc: {missing.missing}")
    assert cli.main(["build", "gqa_attn", "--arch", "9.0"]) == 0
    shown = capsys.readouterr().out
    for words in ("sm_90a, float32", "head_dim 32", "registers", "spills", "attention_kernel"):
        assert words in shown
    assert "gqa_attn, portable" in shown and "gqa_attn, hopper" in shown, "for short sequences and for long"


def test_the_cache_verbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(folder))

    def shown(*words: str, code: int = 0) -> str:
        assert cli.main(["cache", *words]) == code
        return capsys.readouterr().out.replace("\n", " ")

    assert "0 entries" in shown("list")
    assert cli.main(["build", "gqa_attn", "--dtype", "float32"]) == 0
    capsys.readouterr()
    listed = shown("list")
    assert "gqa_attn-binding" in listed and "whole" in listed and str(folder) in listed
    shown("verify")
    library = next(path for path in folder.glob("entries/*binding*/*.so"))
    # A new file of that name: this process may have the old one mapped, and would die with it.
    truncated = library.read_bytes()[:100]
    library.unlink()
    library.write_bytes(truncated)
    assert "gqa_attn-binding" in shown("verify", code=1)
    assert "removed 1 entries" in shown("prune")
    shown("verify")
    assert "removed 0 entries" in shown("prune", "--days", "1")
    assert "removed 1 entries" in shown("prune", "--megabytes", "0")
    assert "0 entries" in shown("list")
    assert "removed 0 entries" in shown("clear")


@pytest.mark.parametrize("action", ["list", "verify", "prune", "clear"])
def test_a_cache_that_is_a_file(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cache"
    path.write_text("a file")
    monkeypatch.setenv("KERNELS_CACHE_DIR", str(path))
    assert cli.main(["cache", action]) == 1
    assert f"error: the cache directory {path} is no folder" in capsys.readouterr().err
    assert path.read_text() == "a file"


# -- bench -------------------------------------------------------------------------------------


def test_bench_prints_json(built: None) -> None:
    shapes = "--shape seqlen=16 num_heads=2 --shape batch=1"
    words = f"bench gqa_attn --device cpu {shapes} --seconds 0.01 --json".split()
    done = run(*words)
    assert done.returncode == 0, done.stderr
    small, default = json.loads(done.stdout)
    assert small["shape"] == {
        "batch": 2,
        "seqlen_q": 16,
        "seqlen_k": 16,
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 32,
    }
    assert default["shape"]["batch"] == 1 and default["shape"]["seqlen_q"] == 80
    rows = {row["name"]: row for row in small["rows"]}
    assert {"ModelNew", "reference", "SDPA, enable_gqa", "vectorised"} <= set(rows)
    for row in rows.values():
        assert row["eager"]["median_us"] > 0 and row["error"] < 1e-5
    assert small["environment"]["command"] == "python -m kernels " + " ".join(words)


def test_bench_writes_json_beside_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = BenchRow("ModelNew", 1e-7, TIMING, tflops=1.0, tflops_from="eager", accurate=True)

    def bench(problem: Problem, case: Case, device: str, **words: object) -> BenchResult:
        return BenchResult(problem.name, case.name, case.shape, case.dtype, 1, 1, (row,), ENVIRONMENT)

    monkeypatch.setattr("kernels.evaluate.bench.bench", bench)
    monkeypatch.setattr("kernels.jit.load.obtain_all", lambda specs: [])
    words = "bench gqa_attn --device cpu --shape seqlen=16 --json".split()
    path = tmp_path / "bench.json"
    assert cli.main([*words, str(path)]) == 0
    assert "ModelNew" in capsys.readouterr().out
    (result,) = json.loads(path.read_text())
    assert result["shape"]["seqlen_q"] == 16
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out) == [result]
    assert cli.main([*words, str(tmp_path)]) == 2
    assert "cannot be written: it is a folder" in capsys.readouterr().err


@pytest.mark.gpu
def test_bench_on_the_gpu_prints_every_time_and_a_baseline() -> None:
    done = run(*"bench gqa_attn fp8_attn --device cuda --shape seqlen=80 --seconds 0.02 --json".split())
    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout):
        rows = {row["name"]: row for row in result["rows"]}
        for name in ("ModelNew", "x.add_(1), 10 floats"):
            for kind in ("graph", "graph_cold", "eager", "host"):
                assert rows[name][kind]["median_us"] > 0, (name, kind)
        assert rows["ModelNew"]["tflops_from"] == "graph_cold" and rows["ModelNew"]["tflops"] > 0
        assert any("SDPA efficient" in name for name in rows)
        assert result["environment"]["driver"][0].isdigit()


def test_bench_prints_the_shapes_and_then_the_table(
    built: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gqa_attn

    default = gqa_attn.PROBLEM.cases[0]
    longer = {**default.shape, "seqlen_q": 300, "seqlen_k": 300}
    lines = (default, dataclasses.replace(default, name="longer", shape=longer))
    problem = dataclasses.replace(gqa_attn.PROBLEM, bench_cases=lines)
    monkeypatch.setattr("kernels.problem.find_problem", lambda name: problem)
    monkeypatch.setattr("kernels.evaluate.bench.DEFAULT_SHAPES", ({"seqlen": 16},))
    words = "bench gqa_attn --device cpu --seconds 0.01 --limit 100 --shapes".split()

    assert cli.main([*words, "all"]) == 0
    shown = capsys.readouterr().out
    before, _, table = shown.partition("TFLOP/s, median time of a call, error to float64")
    assert "B2 T16 H8/2 D32" in before and "reference" in before
    for text in ("B2 T80", "B2 T300", "H8/2 D32", "vectorised", "time: a call on the CPU", "every element"):
        assert text in table, table
    assert "T16 " not in table

    assert cli.main([*words, "table", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [result["shape"]["seqlen_q"] for result in results] == [80, 300]
    for result in results:
        assert result["in_table"] and result["lead_over_fastest"]["ratio"] > 0
        names = [row["name"] for row in result["rows"]]
        assert names == ["ModelNew", "SDPA, enable_gqa", "SDPA, expanded K/V", "vectorised"]
        assert all(row["accurate"] and row["tflops"] > 0 for row in result["rows"])

    assert cli.main([*words, "default", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert not result["in_table"] and result["shape"]["seqlen_q"] == 16


def test_on_cuda_the_default_is_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which shapes are built for and timed, without a GPU: nothing is."""
    import gqa_attn

    ran: list[tuple[str, str, str]] = []
    built: list[str] = []
    row = BenchRow("ModelNew", 1e-7, TIMING, tflops=1.0, tflops_from="eager", accurate=True)

    def run(in_table: bool) -> Callable[..., BenchResult]:
        def call(problem: Problem, case: Case, device: str, **words: object) -> BenchResult:
            ran.append(("table" if in_table else "shape", case.name, case.dtype))
            assert device == "cuda" and not words["variants"]
            return BenchResult(
                problem.name, case.name, case.shape, case.dtype, 1, 1, (row,), ENVIRONMENT, "", in_table
            )

        return call

    monkeypatch.setattr("kernels.evaluate.check.targets", lambda device: [("cuda", "sm_90a")])
    monkeypatch.setattr("kernels.jit.load.obtain_all", lambda specs: built.extend(s.name for s in specs))
    monkeypatch.setattr("kernels.evaluate.bench.bench", run(False))
    monkeypatch.setattr("kernels.evaluate.bench.bench_line", run(True))

    assert cli.main(["bench", "gqa_attn"]) == 0
    lines = [("table", case.name, case.dtype) for case in gqa_attn.PROBLEM.bench_cases]
    assert ran == [("shape", "default", "float32"), ("shape", "chosen", "float32"), *lines]
    for dtype, head_dim in (("float32", 128), ("float32", 64), ("float32", 256), ("bfloat16", 128)):
        assert any(f"-hopper-sm_90a-{dtype}-d{head_dim}" in name for name in built), built
    shown = capsys.readouterr().out
    assert shown.index("times") < shown.index("TFLOP/s, median time of a call") < shown.index("B1 T16384")

    for words, kinds in (
        (["--shape", "seqlen=16"], {"shape"}),
        (["--dtype", "bfloat16"], {"shape"}),
        (["--dtype", "bfloat16", "--shapes", "table"], {"table"}),
        (["--shapes", "default"], {"shape"}),
    ):
        ran.clear()
        assert cli.main(["bench", "gqa_attn", "--json", *words]) == 0
        assert {kind for kind, _, _ in ran} == kinds
        assert "--dtype" not in words or {dtype for _, _, dtype in ran} == {"bfloat16"}


def test_what_is_built_ahead_is_what_torchs_precision_has_run() -> None:
    from kernels.evaluate import precision
    from kernels.problem import Request, find_problem

    problem, request = find_problem("gqa_attn"), Request("cuda", "sm_90a", "float32", 64, 4)
    with precision.kept():
        assert spec_of(problem, request, "").variant == "hopper"
        torch.set_float32_matmul_precision("high")
        assert spec_of(problem, request, "").variant == "hopper_fast"
        assert spec_of(problem, request, "hopper").variant == "hopper"
        assert spec_of(problem, problem.default_request("cpu", "x86-64-v3"), "").variant == "vectorised"


def test_bench_shows_the_precision_that_was_set() -> None:
    console = Console(file=io.StringIO(), width=120)
    result = BenchResult("gqa_attn", "default", SHAPE, "float32", 1, 1, (), ENVIRONMENT)
    for show in (
        bench_tables.bench_report,
        lambda console, result: bench_tables.bench_table(console, [result]),
    ):
        show(console, result)
    assert "precision" not in console.file.getvalue()
    for show in (
        bench_tables.bench_report,
        lambda console, result: bench_tables.bench_table(console, [result]),
    ):
        show(console, dataclasses.replace(result, precision="tf32"))
    assert console.file.getvalue().count("torch's float32 matmul precision: tf32") == 2


def test_variants_by_name(
    built: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two kernels of one package, side by side in one process, each checked and timed as itself."""
    import gqa_attn
    from gqa_attn.model_new import OPERATOR

    (vectorised,) = (v for v in gqa_attn.PROBLEM.variants if v.device == "cpu")
    again = dataclasses.replace(
        vectorised, name="again", serves=lambda request: request.head_dim > 32, chosen=False
    )
    problem = dataclasses.replace(gqa_attn.PROBLEM, variants=(again, vectorised))
    monkeypatch.setattr("kernels.problem.find_problem", lambda name: problem)
    monkeypatch.setattr(OPERATOR.resolver, "_problem", lambda: problem)
    bench = "bench gqa_attn --device cpu --seconds 0.01 --json --shape seqlen=16".split()

    both = "--shape seqlen=16 head_dim=64 --variant vectorised --variant again".split()
    assert cli.main([*bench, *both]) == 0
    shown = capsys.readouterr()
    narrow, wide = json.loads(shown.out)
    assert [row["name"] for row in narrow["rows"]][:2] == ["ModelNew, vectorised", "reference"]
    assert [row["name"] for row in wide["rows"]][:2] == ["ModelNew, vectorised", "ModelNew, again"]
    assert all(row["error"] < 1e-5 and row["eager"] for row in wide["rows"])
    assert shown.err.count("left out: gqa_attn: variant 'again' does not serve") == 1

    assert cli.main([*bench, "--variant", "again"]) == 2
    assert "variants that do: vectorised" in capsys.readouterr().err

    monkeypatch.setenv("KERNELS_VARIANT", "again")
    assert cli.main("check gqa_attn --device cpu --trials 1".split()) == 0
    shown_out = capsys.readouterr().out
    assert shown_out.count("cpu, again") == 2 and "D32" not in shown_out
    assert cli.main("build gqa_attn --head-dim 64".split()) == 0
    assert "gqa_attn, again" in capsys.readouterr().out


def test_bench_fails_when_model_new_does_and_not_when_it_is_left_out(
    built: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(*arguments: object, **words: object) -> BenchResult:
        return BenchResult("gqa_attn", "", SHAPE, "float32", 1, 1, (row,), ENVIRONMENT, "", True)

    import gqa_attn

    problem = dataclasses.replace(gqa_attn.PROBLEM, bench_cases=gqa_attn.PROBLEM.cases[:1])
    monkeypatch.setattr("kernels.problem.find_problem", lambda name: problem)
    monkeypatch.setattr("kernels.evaluate.bench.bench_line", line)
    words = "bench gqa_attn --device cpu --shapes table".split()
    row = BenchRow("ModelNew", note="about 3 s a call (by 0.2 s at length 4096), over 1 s", left_out=True)
    assert cli.main(words) == 0
    assert "about 3 s a call" in capsys.readouterr().out
    row = BenchRow("ModelNew", note="LaunchError: no kernel")
    assert cli.main(words) == 1
    assert "LaunchError: no kernel" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("package", ["gqa_attn", "fp8_attn"])
def test_the_table_on_the_gpu_is_whole(package: str) -> None:
    """Every line is there, ModelNew and an accurate peer are timed in it, and it takes minutes at most."""
    started = time.monotonic()
    done = run(*f"bench {package} --device cuda --shapes table --seconds 0.05 --json".split())
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 600
    for result in json.loads(done.stdout):
        rows = {row["name"]: row for row in result["rows"]}
        where = f"{result['shape']} {result['dtype']}"
        assert "reference" not in rows, where
        assert rows["ModelNew"]["graph_cold"] or rows["ModelNew"]["eager_cold"], where
        assert rows["ModelNew"]["accurate"], where
        assert result["lead_over_fastest"], where
        if result["dtype"] != "bfloat16":
            assert result["lead_over_accurate"], where


def test_bench_jit_for_an_architecture_that_nvcc_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, with what is wrong, and not by every process that would be timed."""
    toolkit = SimpleNamespace(version="13.0", archs=("sm_75", "sm_90a"))
    monkeypatch.setattr("kernels.jit.build.find_cuda", lambda: toolkit)
    monkeypatch.setattr("kernels.startup.measure", lambda *_, **__: pytest.fail("processes were timed"))
    assert cli.main("bench jit --device cpu --arch 1.0".split()) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("compute capability 1.0 is older than nvcc 13.0 compiles for") == 1
    assert shown.err.count("fix: ") == 1


@pytest.mark.slow
def test_bench_jit_times_fresh_processes() -> None:
    done = run(*"bench jit --device cpu --runs 1 --no-plain --json".split())
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["problem"] == "gqa_attn"
    cold, warm = result["rows"]
    assert len(cold["samples"]) == 1 and len(warm["samples"]) == 5
    assert not cold["note"] and not warm["note"]


# -- tables ------------------------------------------------------------------------------------


TIMING = Timing(1234.5, 1200.0, 1300.0, 15, 3)
ENVIRONMENT = Environment(
    "NVIDIA H200 with a long name", "580.65.06", "13.0", "2.14.1+cu130", "3.11.7", 16, "2026-01-01 00:00 UTC",
    "python -m kernels bench gqa_attn",
)  # fmt: skip
SHAPE = {"batch": 3, "seqlen_q": 200, "seqlen_k": 134, "num_heads": 32, "num_kv_heads": 4, "head_dim": 256}


def _check_rows(console: Console) -> None:
    row = CheckRow(
        "gqa_attn", "cpu", "vectorised", "jitter_3", "a random shape", SHAPE, "float8_e4m3fn", True, "",
        Comparison(True, "", 1.2e-7, 1e-3, 0, 10),
        OracleComparison(True, "", 3.4e-7, 2e-7, 1e-6), TIMING, TIMING,
    )  # fmt: skip
    failing = dataclasses.replace(
        row, passed=False, reason="ValueError: q must be 4-D [batch, seqlen, num_heads, head_dim]", time=None
    )
    terminal.check_report(console, [row, failing, row])


def _build_rows(console: Console) -> None:
    spec = KernelSpec(
        "gqa_attn",
        "portable",
        "cuda",
        "sm_90a",
        "",
        "",
        (("dtype", "float32"), ("head_dim", "32"), ("group_size", "4")),
    )
    symbol = "_ZN9attention16attention_kernelIffLi32EEEvPKT_"
    one = Resources(symbol, 200, 1024, 0, 16, 16)
    built = Built(spec, Path("x.so"), 2.34, False, (one,), {})
    two = dataclasses.replace(
        built, cached=True, resources=(one, dataclasses.replace(one, kernel="not_mangled"))
    )
    binding = KernelSpec("gqa_attn", "binding", "cpu", "x86_64", "", "", ())
    terminal.build_report(console, [built, two, dataclasses.replace(built, spec=binding, resources=())])


def _bench_rows(console: Console) -> None:
    rows = (
        BenchRow(
            "ModelNew", 1e-7, TIMING, Timing(3.02, 3.01, 3.05, 101, 330), TIMING,
            graph_cold=Timing(4.05, 4.01, 4.1, 101, 1), tflops=1.64, tflops_from="graph_cold",
        ),
        BenchRow(
            "SDPA efficient, expanded K/V", 1e-7, TIMING, TIMING, TIMING,
            graph_cold=TIMING, tflops=0.0054, tflops_from="graph_cold",
        ),
        BenchRow("x.add_(1), 10 floats", None, TIMING, TIMING, TIMING, graph_cold=TIMING),
        BenchRow(
            "reference", 1e-7, Timing(3e7, 3e7, 3e7, 1, 1), None, TIMING, "too slow [really]",
            eager_cold=Timing(7e7, 6e7, 8e7, 5, 1), tflops=1e-7, tflops_from="eager_cold",
        ),
    )  # fmt: skip
    bench_tables.bench_report(
        console, BenchResult("gqa_attn", "default", SHAPE, "float32", 6_640_000, 409_600, rows, ENVIRONMENT)
    )


def _table_lines(console: Console) -> None:
    """Two lines with more routes than 80 columns hold."""
    routes = ["SDPA, enable_gqa", "SDPA efficient, expanded K/V", "dequantise + SDPA cuDNN, bfloat16"]
    routes += ["vectorised", "torch.compile, vectorised", "SDPA flash, enable_gqa"]
    ours = BenchRow(
        "ModelNew, hopper", 3.4e-7, graph_cold=Timing(9_870.0, 9_800.0, 9_900.0, 30, 1),
        tflops=223.0, tflops_from="graph_cold", accurate=True,
    )  # fmt: skip
    others = [
        dataclasses.replace(ours, name=name, accurate=name != routes[2], error=2e-3, tflops=48.7)
        for name in routes
    ]
    others[1] = dataclasses.replace(
        others[1], graph_cold=None, eager_cold=Timing(88_100.0, 88e3, 89e3, 6, 1), tflops_from="eager_cold"
    )
    others[3] = BenchRow("vectorised", note="OutOfMemoryError: CUDA out of memory", left_out=True)
    line = BenchResult(
        "gqa_attn", "long", {**SHAPE, "seqlen_q": 16384, "seqlen_k": 16384}, "bfloat16", 10**12, 10**9,
        (ours, *others), ENVIRONMENT, "47 of 16384 rows of every head", True,
        Lead("SDPA, enable_gqa", 1.25), Lead("dequantise + SDPA cuDNN, bfloat16", 0.75),
    )  # fmt: skip
    bench_tables.bench_table(console, [line, dataclasses.replace(line, dtype="float8_e4m3fn")])


def _startup_rows(console: Console) -> None:
    rows = (
        StartupRow("cold: empty cache", 2.9, (2.8, 2.9, 3.0)),
        StartupRow("warm: cached", 0.0043, (0.004, 0.005)),
        StartupRow("plain load_inline", float("nan"), (), "failed with exit code 1: [Errno 2] no nvcc"),
    )
    bench_tables.startup_report(console, StartupResult("gqa_attn", "first call on cuda", rows, ENVIRONMENT))


def _doctor_rows(console: Console) -> None:
    long = (
        "no nvcc of CUDA 13, which this torch is built for; found 12.4 in /usr/local/cuda-12.4 (nvcc on PATH)"
    )
    terminal.doctor_report(
        console,
        [
            Check("CUDA compiler", False, True, long, "pip install 'kernelwright[cuda]'"),
            Check("Hugging Face's kernels", True, False, "not installed", ""),
        ],
    )


def _cache_rows(console: Console) -> None:
    entries = [
        Entry("gqa_attn-portable-sm_90a-float32-d32-g4", Path("x"), 123_456, 200_000.0, True, ""),
        Entry("fp8_attn-binding", Path("y"), 0, 3.0, False, "library.so: [100] bytes of 4096"),
    ]
    terminal.cache_report(console, "/home/someone/.cache/kernelwright", entries)
    terminal.pruned_report(console, "/tmp/cache", Pruned(2, 123_456, 1))


REPORTS: dict[str, tuple[Callable[[Console], None], list[str]]] = {
    "check": (
        _check_rows,
        [
            "B3 T200/134 H32/4 D256",
            "float8_e4m3fn",
            "1.2e-07",
            "3.4e-07",
            "1.23 ms",
            "FAIL 1",
            "[batch, seqlen, num_heads, head_dim]",
            "2 of 3 passed",
        ],
    ),
    "build": (
        _build_rows,
        [
            "gqa_attn, portable",
            "sm_90a, float32",
            "200",
            "1024 B",
            "32 B",
            "2.3 s",
            "cached",
            "attention_kernel",
            "<float, float, 32>",
            "not_mangled",
            "gqa_attn, binding",
        ],
    ),
    "bench": (
        _bench_rows,
        [
            "3.02 us",
            "1.23 ms",
            "1.20-1.30",
            "4.05 us",
            "30.0 s",
            "70.0 s",
            "305",
            "0.0054",
            "too slow [really]",
            "580.65.06",
            "6.64 MFLOP",
            "ModelNew: 1.64 TFLOP/s, 101 GB/s",
            "TFLOP/s of ModelNew, SDPA efficient, expanded K/V: by graph replay, cold L2",
            "TFLOP/s of reference: by eager call, cold L2",
            "in the column graph, cold L2, an eager call on an idle GPU: reference",
            "python -m kernels bench gqa_attn",
        ],
    ),
    "table": (
        _table_lines,
        [
            "B3 T16384",
            "H32/4 D256",
            "float8_e4m3fn",
            "1.25",
            "0.75",
            "223",
            "48.7*",
            "9.87 ms",
            "88.1 ms e",
            "2.0e-03",
            "a CUDA graph replay of one call after an L2 flush",
            "e: an eager call on an idle GPU",
            "*: not accurate",
            "checked at 2 of 2 shapes: 47 of 16384 rows",
            "the reference is a loop and not in this table",
            "H32/4 D256 float8_e4m3fn: OutOfMemoryError: CUDA out of memory",
            "580.65.06",
        ],
    ),
    "startup": (_startup_rows, ["2.90 s", "4.30 ms", "2.80 s - 3.00 s", "[Errno 2] no nvcc", "NVIDIA H200"]),
    "doctor": (_doctor_rows, ["MISSING", "kernelwright[cuda]", "1 required check failed"]),
    "cache": (_cache_rows, ["123 kB", "2 days", "3 s", "[100] bytes", "2 entries", "killed builds"]),
}


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", REPORTS)
def test_tables_fit_and_say_everything(name: str, width: int) -> None:
    report, words = REPORTS[name]
    file = io.StringIO()
    report(Console(file=file, width=width))
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= width, text
    assert "\x1b" not in text, "no colour codes in a file"
    assert "…" not in text, "nothing is cut off"
    squeezed = " ".join(text.split())
    for word in words:
        assert word in squeezed, f"{word!r} is not in\n{text}"


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0.00 us"),
        (3.017, "3.02 us"),
        (13.75, "13.8 us"),
        (999.4, "999 us"),
        (999.6, "1.00 ms"),
        (71_400.0, "71.4 ms"),
        (2.5e6, "2.50 s"),
        (3e8, "300 s"),
    ],
)
def test_duration(microseconds: float | None, text: str) -> None:
    assert tables.duration(microseconds) == text


@pytest.mark.parametrize(
    ("heads", "text"),
    [
        ({"num_heads": 8, "num_kv_heads": 2}, "B2 T80 H8/2 D32"),
        ({"num_heads": 3, "num_kv_heads": 3}, "B2 T80 H3/3 D32"),
        ({"num_heads": 4}, "B2 T80 H4 D32"),
    ],
)
def test_shape_text_of_heads(heads: dict[str, int], text: str) -> None:
    assert tables.shape_text({"batch": 2, "seqlen_q": 80, "seqlen_k": 80, **heads, "head_dim": 32}) == text


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"batch": 0, "seqlen_q": 5, "seqlen_k": 0}, "B0 T5/0"),
        ({"seqlen": 72, "head_dim": 1}, "T72 D1"),
        ({"depth": 3, "head_dim": 4}, "D4 depth=3"),
        ({}, ""),
    ],
)
def test_shape_text(shape: dict[str, int], text: str) -> None:
    assert tables.shape_text(shape) == text
