"""Whole evaluations on the CPU: what each kind of candidate and reference comes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernels.evaluate import rounds
from kernels.evaluate.evaluation import Evaluation
from kernels.evaluate.judge import evaluate
from kernels.evaluate.options import Options
from kernels.evaluate.result import as_json
from kernels.evaluate.subject import find_target
from kernels.evaluate.trials import Trials
from kernels.evaluate.verify import differences
from kernels.evaluate.workers.isolation import WorkerFailed

ROOT = Path(__file__).resolve().parent.parent.parent

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.fc = nn.Linear(size, hidden)

    def forward(self, x):
        return torch.relu(self.fc(x)) * 2

def get_inputs():
    return [torch.randn(32, 48)]

def get_init_inputs():
    return [48, 24]
"""

# `right` is the answer; what a candidate does is its forward.
CANDIDATE = """
import ctypes, os, sys, threading, time
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.fc = nn.Linear(size, hidden)
        self.calls = 0

    def right(self, x):
        return torch.relu(torch.addmm(self.fc.bias, x, self.fc.weight.t())) * 2

    def forward(self, x):
        self.calls += 1
"""


def run(
    folder: Path, forward: str, *, reference: str = REFERENCE, head: str = "", whole: str = "", **options: Any
) -> Evaluation:
    (folder / "reference.py").write_text(textwrap.dedent(reference))
    body = whole or CANDIDATE + textwrap.indent(textwrap.dedent(forward), " " * 8)
    (folder / "candidate.py").write_text(head + textwrap.dedent(body))
    target = find_target("", str(folder / "reference.py"), str(folder / "candidate.py"))
    words: dict[str, Any] = {
        "trials": 1,
        "seconds": 0.02,
        "compile": False,
        "time_limit": 60.0,
        "seed": 7,
        "threads": 1,
        "parts": (),
        **options,
    }
    found = evaluate(target, Options(**words))
    assert differences(as_json(found)) == []
    return found


@pytest.mark.slow
def test_a_good_candidate(tmp_path: Path) -> None:
    found = run(tmp_path, "return self.right(x)", parts=("timing", "memory", "lint"), trials=5)
    assert found.status == "PASS", found.reason
    assert found.deterministic is True
    assert found.gradients == "same"
    assert found.weights.startswith("seeded as the reference's")
    kinds = [trial.kind for trial in found.trials]
    assert kinds.count("default") == 9
    assert kinds.count("timed") >= 11
    timed = [trial for trial in found.trials if trial.kind == "timed"]
    assert all(trial.outputs and trial.outputs[0].oracle_error is not None for trial in timed)
    assert found.timing is not None
    names = [row.name for row in found.timing.rows]
    assert names == ["candidate", "reference", "candidate, repeated content", "candidate, clock check"]
    assert len(found.timing.rows[0].samples_us) == len(found.timing.rows[1].samples_us)
    assert found.memory is not None
    assert found.memory.output_bytes == 32 * 24 * 4
    assert "cast to float32" in found.skipped


def test_no_trials_are_the_default_inputs_alone(tmp_path: Path) -> None:
    found = run(tmp_path, "return self.right(x)", trials=0, parts=("timing",))
    assert found.status == "PASS", found.reason
    told = [(trial.name, trial.kind) for trial in found.trials if trial.kind != "timed"]
    again = [f"default{words}" for words in ("", ", again 1", ", again 2", ", two elements swapped")]
    assert told == [(name, "default") for name in again]
    assert found.timing is not None and "other inputs" in found.skipped


def test_two_calls_make_the_least_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine too, a timed call follows another at once, on new content: reuse is wrong."""
    monkeypatch.setattr(rounds, "_SAMPLE_SECONDS", 1e-9)  # as if one call were long enough
    forward = """
        if time.monotonic() - getattr(self, "left", 0.0) > 1e-4:
            self.last = self.right(x)
        self.left = time.monotonic()
        return self.last.clone()
    """
    found = run(tmp_path, forward, parts=("timing",))
    assert found.status == "WRONG_OUTPUT", found.reason
    assert "(2 calls)" in found.reason


ENDS = [
    ("os._exit(0)", "RUNTIME_ERROR", "exit code 0"),
    ("ctypes.string_at(8)", "RUNTIME_ERROR", "SIGSEGV"),
    ("return self.forward(x)", "RUNTIME_ERROR", "RecursionError"),
    ("raise SystemExit(0)", "RUNTIME_ERROR", "SystemExit"),
    ("raise KeyboardInterrupt", "RUNTIME_ERROR", "KeyboardInterrupt"),
    ("raise MemoryError('no room')", "OUT_OF_MEMORY", "no room"),
    ("return torch.empty(1 << 50)", "OUT_OF_MEMORY", "memory"),
    ("os.closerange(3, 64); return self.right(x)", "RUNTIME_ERROR", "call"),
    ("raise RuntimeError('Error building extension x')", "COMPILE_ERROR", "building"),
    (
        "raise RuntimeError('Error building extension x: c++ -c a.cpp\\n a.cpp:3:5: error: no such y')",
        "COMPILE_ERROR",
        "refused its source: a.cpp:3:5: error: no such y",
    ),
    ("raise type('Own', (Exception,), {'judge_status': 'PASS'})('mine')", "RUNTIME_ERROR", "Own"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "status", "said"), ENDS)
def test_candidates_that_end_themselves(forward: str, status: str, said: str, tmp_path: Path) -> None:
    found = run(tmp_path, forward)
    assert (found.status, found.layer) == (status, "call")
    assert said in found.reason
    assert "\n" not in found.reason


WRONG = [
    ("return self.right(x)[:-1]", "WRONG_OUTPUT", "output"),
    ("return self.right(x).double()", "WRONG_OUTPUT", "output"),
    ("return (self.right(x),)", "WRONG_OUTPUT", "output"),
    ("return None", "WRONG_OUTPUT", "output"),
    ("return self.right(x).bfloat16().float()", "WRONG_OUTPUT", "output"),
    ("return torch.zeros(32, 24)", "WRONG_OUTPUT", "output"),
    ("out = torch.empty(32, 24); out[:-1] = self.right(x)[:-1]; return out", "WRONG_OUTPUT", "output"),
    ("return self.right(x) if self.calls < 4 else torch.zeros(32, 24)", "WRONG_OUTPUT", "output"),
    ("return self.right(x) * (1 + self.calls % 2)", "NONDETERMINISTIC", "output"),
    ("out = self.right(x); x.zero_(); return out", "CHEAT", "mutation"),
    ("return x[:, :24].copy_(self.right(x))", "CHEAT", "alias"),
    (
        "self.o = getattr(self, 'o', torch.empty(32, 24)); return self.o.copy_(self.right(x))",
        "CHEAT",
        "alias",
    ),
    ("return self.right(x).as_subclass(type('Lazy', (torch.Tensor,), {}))", "CHEAT", "type"),
    ("return self.right(x).to_sparse()", "CHEAT", "type"),
    (
        "out = torch.empty(32, 24)\n"
        "right = self.right(x)\n"
        "threading.Thread(target=lambda: (time.sleep(0.004), out.copy_(right))).start()\n"
        "return out",
        "CHEAT",
        "late",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("forward", "status", "layer"), WRONG)
def test_candidates_that_are_wrong(forward: str, status: str, layer: str, tmp_path: Path) -> None:
    found = run(tmp_path, forward)
    assert (found.status, found.layer) == (status, layer), found.reason
    assert found.timing is None


@pytest.mark.slow
def test_a_flood_and_a_forged_verdict(tmp_path: Path) -> None:
    forward = """
    for _ in range(200):
        os.write(1, b'{"status": "PASS"}\\n' * 1000)
    return torch.zeros(32, 24)
    """
    found = run(tmp_path, forward)
    assert found.status == "WRONG_OUTPUT"
    assert found.log.total_bytes > 3_000_000
    assert len(found.log.text) < 40_000


@pytest.mark.slow
def test_an_endless_loop(tmp_path: Path) -> None:
    started = time.monotonic()
    found = run(tmp_path, "while True: pass", time_limit=3.0)
    assert (found.status, found.layer) == ("TIMEOUT", "call")
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_memory_without_end(tmp_path: Path) -> None:
    forward = "held = []\nwhile True: held.append(torch.ones(1 << 22))"
    found = run(tmp_path, forward, memory_bytes=1_000_000_000)
    assert (found.status, found.layer) == ("OUT_OF_MEMORY", "call")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whole", "status", "layer"),
    [
        ("import sys\nsys.exit(0)\nclass ModelNew: pass", "RUNTIME_ERROR", "import"),
        ("import nowhere_at_all\nclass ModelNew: pass", "RUNTIME_ERROR", "import"),
        ("ModelNew = 3", "INVALID_CANDIDATE", "import"),
        ("class ModelNew:\n    def __init__(self): pass", "RUNTIME_ERROR", "construct"),
        ("class ModelNew:\n    def __init__(self, *sizes): pass", "INVALID_CANDIDATE", "construct"),
    ],
)
def test_candidates_that_do_not_get_to_a_call(whole: str, status: str, layer: str, tmp_path: Path) -> None:
    found = run(tmp_path, "", whole=whole)
    assert (found.status, found.layer) == (status, layer), found.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("torch.randn(32, 48)", "torch.randn(32, 48, device='cuda')"), "needs a GPU"),
        (("torch.relu(self.fc(x))", "torch.relu(self.nothing(x))"), "nothing"),
        (("return [torch.randn(32, 48)]", "return torch.randn(32, 48)"), "get_inputs() returned Tensor"),
        (("import torch\n", "import torch, nowhere_at_all\n"), "nowhere_at_all"),
        (
            ("return torch.relu(", "self.n = getattr(self, 'n', 0) + 1\n        return self.n * torch.relu("),
            "keeps a state between calls",
        ),
        (("* 2", "* __import__('random').random()"), "draws from another generator"),
    ],
)
def test_references_that_do_not_work(changes: tuple[str, str], said: str, tmp_path: Path) -> None:
    found = run(tmp_path, "return self.right(x)", reference=REFERENCE.replace(*changes))
    assert found.status == "INVALID_REFERENCE", found.reason
    assert said in found.reason


DRAWS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(size))

    def forward(self, x, exponent):
        if x.shape[0] % 2:
            raise ValueError("an odd batch")
        return {"out": x * self.scale, "most": (x.argmax(-1), exponent * 2)}

def get_inputs():
    return [torch.randn(popcorn_pri.jitter_int(16, 0.5, 2.0), popcorn_pri.trial_dim(64, align=8)), 3]

def get_init_inputs():
    return [popcorn_pri.trial_dim(64, align=8)]
"""


@pytest.mark.slow
def test_drawn_shapes(tmp_path: Path) -> None:
    whole = """
    import torch
    from torch import nn
    class ModelNew(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(size))
        def forward(self, x, exponent):
            return {"out": torch.mul(x, self.scale), "most": (x.max(-1).indices, exponent * 2)}
    """
    found = run(tmp_path, "", reference=DRAWS, whole=whole, trials=8)
    assert found.status == "PASS", found.reason
    jitter = [trial for trial in found.trials if trial.kind == "jitter"]
    assert len(jitter) == 8
    assert len({trial.inputs for trial in jitter}) > 3
    assert any(trial.redrawn for trial in jitter)
    assert any(finding.rule == "redrawn" and "an odd batch" in finding.message for finding in found.findings)


@pytest.mark.slow
def test_a_shape_that_is_baked_in(tmp_path: Path) -> None:
    whole = """
    import torch
    from torch import nn
    class ModelNew(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(size))
        def forward(self, x, exponent):
            out = torch.zeros(x.shape)
            out[:16, :64] = (x * self.scale)[:16, :64]
            return {"out": out, "most": (x.argmax(-1), exponent * 2)}
    """
    found = run(tmp_path, "", reference=DRAWS, whole=whole, trials=8)
    assert found.status == "WRONG_OUTPUT"
    assert found.reason.startswith("jitter")


HALF = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return x @ y

def get_inputs():
    return [torch.randn(16, 64).half(), torch.randn(64, 16).half()]

def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "status", "cast"),
    [
        ("return (x.float() @ y.float()).to(x.dtype)", "PASS", "ran"),
        ("assert x.dtype == torch.float16; return (x.float() @ y.float()).half()", "PASS", "refused"),
        ("return (x.half() @ y.half()).to(x.dtype)", "WRONG_OUTPUT", "ran"),
    ],
)
def test_everything_cast_to_float32(forward: str, status: str, cast: str, tmp_path: Path) -> None:
    whole = f"""
    import torch
    from torch import nn
    class ModelNew(nn.Module):
        def forward(self, x, y):
            {forward}
    """
    found = run(tmp_path, "", reference=HALF, whole=whole)
    assert found.status == status, found.reason
    assert any(trial.kind == "cast" for trial in found.trials) == (cast == "ran")
    assert ("refuses" in found.skipped.get("cast to float32", "")) == (cast == "refused")


HUNT = """
import gc, time
_real = time.perf_counter_ns
for _f in gc.get_objects():
    if type(_f).__name__ == "function" and _f.__name__ == "sample":
        for _cell, _name in zip(_f.__closure__ or (), _f.__code__.co_freevars):
            if _name == "clock":
                _cell.cell_contents = lambda: _real() // 10
"""


@pytest.mark.slow
def test_a_clock_that_lies(tmp_path: Path) -> None:
    found = run(tmp_path, "return self.right(x)", head=HUNT, parts=("timing",))
    assert (found.status, found.layer) == ("CHEAT", "clock"), found.reason


@pytest.mark.slow
def test_work_that_is_skipped_on_repeated_content(tmp_path: Path) -> None:
    forward = """
    key = tuple(x.flatten().tolist())
    self.known = getattr(self, "known", {})
    if key not in self.known:
        for _ in range(300):
            self.known[key] = self.right(x)
    return self.known[key].clone()
    """
    found = run(tmp_path, forward, parts=("timing",))
    assert (found.status, found.layer) == ("CHEAT", "repeat"), found.reason


@pytest.mark.slow
def test_new_content_comes_with_the_calls_that_are_timed_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the candidate that watches the inputs has no time between their content and the clock."""
    asked = []
    ask = Trials.ask_candidate

    def noted(self: Trials, stage: str, do: str, /, **words: Any) -> dict[str, Any]:
        asked.append((do, len(words.get("contents", ())), words.get("sets")))
        return ask(self, stage, do, **words)

    monkeypatch.setattr(Trials, "ask_candidate", noted)
    found = run(tmp_path, "return self.right(x)", parts=("timing",))
    assert found.status == "PASS", found.reason
    assert found.timing is not None
    rows = {row.name: len(row.samples_us) for row in found.timing.rows}
    with_content = [sets for do, count, sets in asked if do == "time" and count and count == sets]
    assert len(with_content) == rows["candidate"] + rows["candidate, repeated content"]
    first = next(number for number, (do, count, _) in enumerate(asked) if do == "time" and count)
    assert "load" not in {do for do, _, _ in asked[first : first + 2 * len(with_content)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "after", "kind"), [("load", 3, "died"), ("time", 8, "died"), ("time", 0, "error")]
)
def test_a_compiled_reference_that_dies_is_lost_alone(
    do: str, after: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(self: Trials, asked_for: str, /, **words: Any) -> dict[str, Any]:
        made = SimpleNamespace(outside_s=1e-3, failure=None, pause=lambda: None, folder=tmp_path)
        made.close = lambda: vars(made).update(failure=WorkerFailed("died", "closed"))
        self.compiled = self.compiled or cast(Any, made)
        asked.append(asked_for)
        if asked_for == do and asked.count(do) > after:
            raise WorkerFailed(kind, "died of SIGSEGV")
        return {"routes": [rounds.COMPILED], "failed": {}, "ns": 1_000_000}

    monkeypatch.setattr(Trials, "ask_compiled", ask)
    found = run(tmp_path, "return self.right(x)", parts=("timing",), compile=True)
    assert found.status == "PASS", found.reason
    assert found.timing is not None
    assert rounds.COMPILED not in {row.name for row in found.timing.rows}
    assert [one.name for one in found.timing.verdicts] == [rounds.REFERENCE]
    said = "it died of SIGSEGV" if kind == "died" else "it failed while it was timed: died of SIGSEGV"
    assert found.skipped[f"baseline {rounds.COMPILED}"] == said
    assert asked.count(do) == after + 1  # nothing is asked of it any more


@pytest.mark.slow
def test_a_copy_of_the_reference_takes_as_long(tmp_path: Path) -> None:
    """Another process, the same work: it must find its calls, content and memory in the same state."""
    text = (Path(__file__).parent / "problems" / "level1" / "softmax.py").read_text()
    copy = text.replace("class Model(", "class ModelNew(")
    seen = []
    for seed in range(5):
        found = run(tmp_path, "", reference=text, whole=copy, parts=("timing",), seed=seed, seconds=0.3)
        assert found.timing is not None
        seen += [one for one in found.timing.verdicts if one.name == rounds.REFERENCE]
        calls = {row.name: row.calls_per_sample for row in found.timing.rows}
        assert calls[rounds.REFERENCE] == calls["candidate"]
    assert sum(one.verdict in ("faster", "slower") for one in seen) <= 1, seen


@pytest.mark.slow
def test_wrong_only_while_timed(tmp_path: Path) -> None:
    found = run(tmp_path, "return self.right(x) * (1 if self.calls < 30 else 1.001)", parts=("timing",))
    assert (found.status, found.layer) == ("WRONG_OUTPUT", "output"), found.reason
    assert found.reason.startswith("timed")


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    run_files = tmp_path / "reference.py", tmp_path / "candidate.py"
    run_files[0].write_text(REFERENCE)
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    run_files[1].write_text(CANDIDATE + f"        {note}\n        time.sleep(600)\n")
    words = [
        "evaluate",
        "--reference",
        str(run_files[0]),
        "--candidate",
        str(run_files[1]),
        "--device",
        "cpu",
    ]
    judge = subprocess.Popen(
        [sys.executable, "-m", "kernels", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(1200):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.1)
    worker = int((tmp_path / "pid").read_text())
    judge.send_signal(signal.SIGINT)
    _, errors = judge.communicate(timeout=60)
    assert judge.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not Path(f"/proc/{worker}").exists()
    assert not list(Path("/dev/shm").glob(f"kernels-judge-{judge.pid}-*"))


@pytest.mark.slow
def test_a_package_with_a_faulty_candidate(tmp_path: Path) -> None:
    (tmp_path / "fault.py").write_text(
        "from torch import nn\nfrom gqa_attn.peers import vectorised\n\n"
        "class ModelNew(nn.Module):\n    def forward(self, q, k, v):\n"
        "        return vectorised(q.bfloat16(), k.bfloat16(), v.bfloat16()).to(q.dtype)\n"
    )
    target = find_target("gqa_attn", candidate=str(tmp_path / "fault.py"))
    found = evaluate(target, Options(trials=1, seed=2, threads=1, parts=(), case_flops_ratio=0.0))
    assert found.status == "WRONG_OUTPUT"


def test_seeds_repeat_an_evaluation_s_draws() -> None:
    assert Options(seed=3).as_json()["seed"] == 3
    assert "command" not in Options().as_json()
    assert os.sched_getaffinity(0)
