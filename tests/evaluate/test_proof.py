"""The proof that the judge judges well: every cheat and fault is rejected, every honest kernel accepted.

Each file below ``cheats/`` and ``honest/`` is one candidate, and names its reference
(a file below ``problems/`` or a problem package) in ``REFERENCE``. ``faults/`` holds one file
a problem package, which is judged once for each of its ``FORM`` names. Candidates are read
as text here and never imported; only a worker of the judge runs them.

A cheat says in ``CAUGHT_BY`` which layers may catch it. What is known of a cheat to the
lint is judged once more without it, so that the layers behind the lint are proven as well.
The tables of all results are printed when the last test has run.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from nursery import Nursery  # noqa: E402

ROOT = HERE.parent.parent
PACKAGES = ("gqa_attn", "fp8_attn")
# Few at a time with one thread each: more threads than cores wait for each other for milliseconds.
AT_ONCE = 2
CUDA_AT_ONCE = max(AT_ONCE, min(8, len(os.sched_getaffinity(0)) // 2))
THREADS = 1
# More than any honest call here needs with two judges at work; what hangs costs this much.
LIMIT_SECONDS = 8.0
# On CUDA first uses of what libraries load count as well.
CUDA_LIMIT_SECONDS = 30.0
# Several times what a worker with torch in it holds.
MEMORY_BYTES = 4 << 30
SECONDS_PER_ROW = 0.02
TRIALS = 5
# The same draws in every run; no number that a candidate tries first.
SEED = 1_390_514_227
# What a file may say of its candidate. One that DISTURBS takes all of the GPU from the others.
FACTS = ("REFERENCE", "DEVICES", "CAUGHT_BY", "SLOW", "KILLS", "DISTURBS")
WITHOUT_LINT = ("timing",)
PARTS = ("timing", "lint")
# torch's own float32 attention on CUDA is further from float64 than the packages allow.
CPU_FORMS = ("library",)
TIMED = ("repeat", "clock", "background")


@dataclass(frozen=True)
class Candidate:
    """One file to judge. ``text`` is its source, ``caught_by`` empty for an honest one."""

    kind: str
    name: str
    what: str
    reference: str
    text: str
    caught_by: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")
    slow: bool = False
    kills: bool = False
    disturbs: bool = False


@dataclass(frozen=True)
class Seen:
    """What the judge said, and how long it took."""

    status: str
    layer: str
    reason: str
    seconds: float
    rules: tuple[str, ...] = ()


@dataclass
class Book:
    """All results, by (kind, name, device, note), in the order in which they came."""

    rows: list[tuple[Candidate, str, str, Seen, bool]] = field(default_factory=list)


def _constants(text: str) -> dict[str, Any]:
    """The literal values that a module gives to names in capitals."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in (*FACTS, "REJECTED", "ACCEPTED"):
                found[name] = ast.literal_eval(node.value)
    return found


def _read(kind: str, path: Path) -> Candidate:
    text = path.read_text(encoding="utf-8")
    said = _constants(text)
    first_line = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    return Candidate(
        kind,
        path.stem,
        first_line,
        said["REFERENCE"],
        text,
        said.get("CAUGHT_BY", ()),
        said.get("DEVICES", ("cpu", "cuda")),
        said.get("SLOW", False),
        said.get("KILLS", False),
        said.get("DISTURBS", False),
    )


def _forms(package: str, of: str) -> list[Candidate]:
    """The copies of ``faults/PACKAGE.py``, one for each name in its dict ``of``."""
    text = (HERE / "faults" / f"{package}.py").read_text(encoding="utf-8")
    caught_by = ("output",) if of == "REJECTED" else ()
    kind = "faults" if of == "REJECTED" else "right forms"
    return [
        Candidate(
            kind,
            f"{package}_{form}",
            what,
            package,
            _with_form(text, form),
            caught_by,
            ("cpu",) if form in CPU_FORMS else ("cpu", "cuda"),
        )
        for form, what in _constants(text)[of].items()
    ]


def _with_form(text: str, form: str) -> str:
    changed, count = re.subn(r'^FORM = "plain"$', f'FORM = "{form}"', text, flags=re.MULTILINE)
    assert count == 1, 'the file must say FORM = "plain" once'
    return changed


CHEATS = [_read("cheats", path) for path in sorted((HERE / "cheats").glob("*.py"))]
HONEST = [_read("honest", path) for path in sorted((HERE / "honest").glob("*.py"))]
FAULTS = [form for package in PACKAGES for form in _forms(package, "REJECTED")]
RIGHT = [form for package in PACKAGES for form in _forms(package, "ACCEPTED")]


def _parameters(candidates: list[Candidate]) -> list[Any]:
    """A test parameter for each candidate on each of its devices, with its marks."""
    found = []
    for candidate in candidates:
        for device in candidate.devices:
            marks = [pytest.mark.gpu] if device == "cuda" else []
            marks += [pytest.mark.slow] if candidate.slow else []
            found.append(pytest.param(candidate, device, marks=marks, id=f"{candidate.name}-{device}"))
    return found


@pytest.fixture(scope="session")
def judged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str, str], Future[Seen]]]:
    """What the judge says to each candidate that a selected test asks about, a few at a time."""
    from kernels.evaluate.workers import isolation

    folder = tmp_path_factory.mktemp("candidates")
    with contextlib.ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        nursery = Nursery()
        stack.callback(nursery.close)
        patched.setattr(isolation, "subprocess", nursery.as_subprocess())
        at_once = CUDA_AT_ONCE if torch.cuda.is_available() else AT_ONCE
        pool, last = (stack.enter_context(ThreadPoolExecutor(count)) for count in (at_once, 1))
        found, alone = {}, []
        for item in request.session.items:
            parameters = getattr(getattr(item, "callspec", None), "params", {})
            candidate, device = parameters.get("candidate"), parameters.get("device")
            if isinstance(candidate, Candidate) and device and not item.get_closest_marker("skip"):
                key = (candidate.kind, candidate.name, device)
                if device == "cuda" and (candidate.disturbs or _shows_in_time_alone(candidate)):
                    alone.append((key, candidate))
                else:
                    found[key] = pool.submit(_judge, candidate, device, folder)
        others = list(found.values())
        for key, candidate in alone:
            found[key] = last.submit(_judge_after, others, candidate, key[2], folder)
        yield found
        pool.shutdown(cancel_futures=True)
        last.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def book(request: pytest.FixtureRequest) -> Iterator[Book]:
    """Takes the results of all tests and prints them as tables when the last one has run."""
    written = Book()
    yield written
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        _show(written)


def _show(book: Book) -> None:
    console = Console(width=150)
    for kind in ("cheats", "faults", "honest", "right forms"):
        rows = [row for row in book.rows if row[0].kind == kind]
        if not rows:
            continue
        good = sum(passed for *_, passed in rows)
        wanted = "rejected" if kind in ("cheats", "faults") else "accepted"
        table = Table("name", "what", "device", "status", "layer", "lint", "seconds")
        table.title = f"{kind}: {good} of {len(rows)} {wanted}"
        for candidate, device, lint, seen, passed in rows:
            style = "" if passed else "bold red"
            layer = seen.layer or "-"
            cells = (candidate.name, candidate.what, device, seen.status, layer, lint, f"{seen.seconds:.1f}")
            table.add_row(*cells, style=style)
        console.print()
        console.print(table)


def _judge(candidate: Candidate, device: str, folder: Path) -> Seen:
    """Judge one candidate, and once more where only a difference in time can tell and none was clear.

    The rules on times say nothing when a busy machine hides the difference; an honest kernel
    has no second chance.
    """
    seen = _judge_once(candidate, device, folder)
    if seen.status == "PASS" and _shows_in_time_alone(candidate):
        seen = _judge_once(candidate, device, folder)
    return seen


def _judge_after(others: list[Future[Seen]], candidate: Candidate, device: str, folder: Path) -> Seen:
    """As :func:`_judge`, once nobody else is at work."""
    wait(others)
    return _judge(candidate, device, folder)


def _shows_in_time_alone(candidate: Candidate) -> bool:
    return bool(candidate.caught_by) and set(candidate.caught_by) <= set(TIMED)


def _judge_once(candidate: Candidate, device: str, folder: Path) -> Seen:
    """One evaluation. A candidate that may kill its judge has a judge in a process of its own."""
    path = folder / candidate.kind / f"{candidate.name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(candidate.text, encoding="utf-8")
    start = time.monotonic()
    run = _judge_apart if candidate.kills else _judge_here
    document = run(_arguments(candidate, device, path))
    seconds = time.monotonic() - start
    rules = tuple(found["rule"] for found in document["findings"] if found["severity"] == "violation")
    return Seen(document["status"], document["layer"], document["reason"], seconds, rules)


def _arguments(candidate: Candidate, device: str, path: Path) -> dict[str, Any]:
    """What :func:`_judge_here` takes: plain values, so that they can be passed to another process."""
    package = candidate.reference in PACKAGES
    reference = "" if package else str(HERE / "problems" / f"{candidate.reference}.py")
    target = {
        "package": candidate.reference if package else "",
        "reference": reference,
        "candidate": str(path),
    }
    forms = candidate.kind in ("faults", "right forms")
    limit = LIMIT_SECONDS if device == "cpu" else CUDA_LIMIT_SECONDS
    options = {
        "device": device,
        "trials": TRIALS,
        "seconds": SECONDS_PER_ROW,
        "compile": False,
        "threads": THREADS,
        "seed": SEED,
        # What builds, and what starts its own interpreter, takes its time.
        "time_limit": limit if _is_quick(candidate) else 240.0,
        "case_flops_ratio": 1.0,
        "memory_bytes": MEMORY_BYTES if device == "cpu" else 0,
        "parts": () if forms else WITHOUT_LINT if candidate.caught_by else PARTS,
    }
    return {"target": target, "options": options}


def _is_quick(candidate: Candidate) -> bool:
    builds = candidate.slow or "package" in candidate.name
    return not builds and not candidate.kills


def _judge_here(arguments: dict[str, Any]) -> dict[str, Any]:
    from kernels.evaluate.judge import evaluate
    from kernels.evaluate.options import Options
    from kernels.evaluate.result import as_json
    from kernels.evaluate.subject import find_target

    target = find_target(**arguments["target"])
    return as_json(evaluate(target, Options(**arguments["options"]), lambda text: None))


def _judge_apart(arguments: dict[str, Any]) -> dict[str, Any]:
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import test_proof; "
        "print(json.dumps(test_proof._judge_here(json.loads(sys.argv[2]))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", code, str(HERE), json.dumps(arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, start_new_session=True
    )
    assert done.returncode == 0, f"the judge ended with {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def _lint(candidate: Candidate) -> list[str]:
    """The rules that the text alone is known to break."""
    from kernels.evaluate.lint import lint_file

    found = lint_file(f"{candidate.name}.py", candidate.text)
    return sorted({finding.rule for finding in found if finding.severity == "violation"})


@pytest.mark.parametrize(("candidate", "device"), _parameters(CHEATS))
def test_cheat_is_caught(candidate: Candidate, device: str, judged: Any, book: Book) -> None:
    seen, lint = judged[candidate.kind, candidate.name, device].result(), _lint(candidate)
    assert seen.status not in ("TOOL_ERROR", "INVALID_REFERENCE"), seen.reason
    by_run = seen.status != "PASS" and seen.layer in candidate.caught_by
    by_lint = bool(lint) and "lint" in candidate.caught_by
    caught = by_run or (seen.status == "PASS" and by_lint)
    book.rows.append((candidate, device, " ".join(lint), seen, caught))
    assert caught, (
        f"{candidate.name}: {seen.status} by layer {seen.layer!r} ({seen.reason}); lint: {lint}; "
        f"expected one of {candidate.caught_by}"
    )


@pytest.mark.parametrize(("candidate", "device"), _parameters(FAULTS))
def test_fault_is_rejected(candidate: Candidate, device: str, judged: Any, book: Book) -> None:
    seen = judged[candidate.kind, candidate.name, device].result()
    rejected = seen.status in ("WRONG_OUTPUT", "NONDETERMINISTIC") and seen.layer in candidate.caught_by
    book.rows.append((candidate, device, "", seen, rejected))
    assert rejected, f"{candidate.name}: {seen.status} by layer {seen.layer!r} ({seen.reason})"


@pytest.mark.parametrize(("candidate", "device"), _parameters(HONEST + RIGHT))
def test_honest_kernel_is_accepted(candidate: Candidate, device: str, judged: Any, book: Book) -> None:
    seen = judged[candidate.kind, candidate.name, device].result()
    accepted = seen.status == "PASS"
    book.rows.append((candidate, device, " ".join(seen.rules), seen, accepted))
    assert accepted, f"{candidate.name}: {seen.status} by layer {seen.layer!r}: {seen.reason} {seen.rules}"


def test_there_are_enough() -> None:
    """What the proof promises, counted among what runs without a GPU and without ``-m slow``."""
    for candidates, least in ((CHEATS, 30), (HONEST + RIGHT, 50), (FAULTS, 24)):
        usual = [c for c in candidates if "cpu" in c.devices and not c.slow]
        assert len(usual) >= least
        assert len({(c.reference, c.text) for c in candidates}) == len(candidates)


@pytest.mark.parametrize("candidate", CHEATS + HONEST, ids=lambda candidate: candidate.name)
def test_candidate_says_what_it_is(candidate: Candidate) -> None:
    assert candidate.what.endswith((".", ":")) or len(candidate.what) > 20
    assert candidate.reference in PACKAGES or (HERE / "problems" / f"{candidate.reference}.py").is_file()
    assert bool(candidate.caught_by) == (candidate.kind == "cheats")
