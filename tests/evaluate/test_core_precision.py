"""Torch's float32 matmul precision while something is judged: from outside, by a file, by a peer."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_core_judge import CANDIDATE, REFERENCE, run

from kernels.evaluate import precision
from kernels.evaluate.evaluation import Evaluation
from kernels.evaluate.measures import ceilings, nvidia_tools
from kernels.evaluate.workers.baselines import Baselines
from kernels.evaluate.workers.calls import InputSets
from kernels.evaluate.workers.isolation import Limits, Worker

OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
SET_HIGH = "import torch\ntorch.set_float32_matmul_precision('high')\n"


def setting() -> str:
    return torch.backends.cuda.matmul.fp32_precision


def legacy(name: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(name)


def place(holder: Any, value: str) -> Callable[[], None]:
    return lambda: setattr(holder, "fp32_precision", value)


def old_switch() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def nothing() -> None:
    pass


WAYS = {
    "nothing": nothing,
    "highest": legacy("highest"),
    "high": legacy("high"),
    "medium": legacy("medium"),
    "allow_tf32": old_switch,
    "matmul": place(torch.backends.cuda.matmul, "tf32"),
    "matmul_ieee": place(torch.backends.cuda.matmul, "ieee"),
    "cudnn": place(torch.backends.cudnn, "tf32"),
    "mkldnn": place(torch.backends.mkldnn.matmul, "bf16"),  # type: ignore[attr-defined]
    "everything": place(torch.backends, "tf32"),
}


def torch_default() -> None:
    for holder in (torch.backends, torch.backends.cudnn):
        holder.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for holder in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):  # type: ignore[attr-defined]
        holder.fp32_precision = "none"


@pytest.fixture(autouse=True)
def _default_setting() -> Iterator[None]:
    torch_default()
    yield
    torch_default()


def readable() -> list[object]:
    """What torch's names for the precision say; some raise after a mixture of old and new ones."""
    found: list[object] = [precision.now().places]
    for ask in (torch.get_float32_matmul_precision, lambda: torch.backends.cuda.matmul.allow_tf32):
        try:
            found.append(ask())
        except RuntimeError:
            found.append("raises")
    return found


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", WAYS)
@pytest.mark.parametrize("inside", WAYS)
def test_what_is_set_inside_is_taken_back(before: str, inside: str) -> None:
    WAYS[before]()
    noted = readable()
    with precision.kept():
        WAYS[inside]()
    after = readable()
    assert after[0] == noted[0]
    for then, now in zip(noted[1:], after[1:], strict=True):
        assert then in (now, "raises"), "no name that could be read raises now"


@pytest.mark.parametrize("before", WAYS)
def test_full_precision_inside_alone(before: str) -> None:
    WAYS[before]()
    noted = readable()
    with precision.full():
        assert not {*precision.now().places[2:]} & {*precision.LOWERED}
        assert precision.lowered("cuda")() == precision.lowered("cpu")() == ""
    assert readable() == noted


def test_default_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At torch's default nothing is ever written, not even the same again."""
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda name: pytest.fail("written"))
    monkeypatch.setattr(torch._C, "_set_fp32_precision_setter", lambda *words: pytest.fail("written"))
    with precision.kept(), precision.full():
        precision.now().restore()


def test_what_a_maker_sets_is_for_its_calls() -> None:
    made, settings = precision.apart(lambda: torch.set_float32_matmul_precision("high") or "made")
    assert made == "made" and setting() == "none"
    settings.restore()
    assert setting() == "tf32"


def test_what_is_asked_is_bound_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    early = precision.lowered("cuda")
    monkeypatch.setattr(
        torch._C,
        "_get_fp32_precision_getter",
        lambda backend, operation: "tf32" if (backend, operation) == ("cuda", "matmul") else "none",
    )
    assert early() == ""
    assert precision.lowered("cuda")() == "tf32" and precision.lowered("cpu")() == ""
    assert precision.fast_allowed("cuda") and not precision.fast_allowed("cpu")
    monkeypatch.delattr(torch._C, "_get_fp32_precision_getter")
    matmul = type("matmul", (), {"fp32_precision": "tf32"})
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    assert precision.lowered("cuda")() == "tf32"


# -- workers and tools -------------------------------------------------------------------------


ENVIRONMENT_OF_A_WORKER = """
import json, os, socket, struct, sys
end = socket.socket(fileno=int(sys.argv[1]))
size = struct.unpack(">I", end.recv(4, socket.MSG_WAITALL))[0]
request = json.loads(end.recv(size, socket.MSG_WAITALL))
data = json.dumps({"id": request["id"], "environment": dict(os.environ)}).encode()
end.sendall(struct.pack(">I", len(data)) + data)
"""


def test_workers_and_tools_start_without_the_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in precision.FROM_OUTSIDE:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    for role in ("reference", "candidate"):
        worker = Worker(role, tmp_path, Limits(20, 0), "cpu", 1, _bare)
        try:
            seen = worker.request("ping")["environment"]
        finally:
            worker.close()
        assert seen["SOMETHING_ELSE"] == "1" and not seen.keys() & {*precision.FROM_OUTSIDE}
    done = nvidia_tools.run(["/usr/bin/env"], 20)
    assert "SOMETHING_ELSE=1" in done.output and OVERRIDE not in done.output


def _bare(role: str, file: int, device: str, threads: int) -> list[str]:
    return [sys.executable, "-S", "-c", ENVIRONMENT_OF_A_WORKER, str(file)]


def test_peers_leave_the_references_process_as_it_was() -> None:
    seen: dict[str, list[str]] = {"reference": [], "plain": [], "lowers": []}

    def lowers(x: torch.Tensor) -> torch.Tensor:
        torch.set_float32_matmul_precision("high")
        seen["lowers"].append(setting())
        return x

    def noted(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            seen[name].append(setting())
            return x

        return call

    sets, inputs = InputSets("cpu"), [torch.ones(2)]
    sets._values[0] = inputs
    baselines = Baselines("cpu", sets)
    peers = {"lowers": lowers, "plain": noted("plain")}
    made = baselines.make(noted("reference"), inputs, lambda: peers, compiled=False)
    assert made == {"routes": ["reference", *peers], "failed": {}}
    for name in ("lowers", "reference", "plain"):
        baselines.time(name, 1, 2)
    assert {name: {*found} for name, found in seen.items()} == {
        "reference": {"none"},
        "plain": {"none"},
        "lowers": {"tf32"},
    }
    assert setting() == "none"


@pytest.mark.parametrize("rows", [40, 1200])
def test_a_loop_over_rows_is_not_compiled(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take minutes, of which the reason speaks."""
    compiled: list[int] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[row].exp().sum() + 1 for row in range(rows)])

    def compile_(given: Any) -> Any:
        compiled.append(rows)
        return given

    monkeypatch.setattr(torch, "compile", compile_)
    baselines = Baselines("cpu", InputSets("cpu"))
    made = baselines.make(model, [torch.ones(rows, 3)], dict, compiled=True)
    (name,) = {*made["routes"], *made["failed"]}
    assert name == "torch.compile of the reference"
    if rows == 40:
        assert made["routes"] == [name]
    else:
        assert "a call makes 4801 operations" in made["failed"][name]


@pytest.mark.parametrize("before", ["nothing", "high", "allow_tf32", "matmul"])
def test_measuring_rates_leaves_the_setting(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WAYS[before]()
    noted = readable()
    seen = {}

    def product(name: str) -> Callable[[int], Callable[[], None]]:
        def make(size: int) -> Callable[[], None]:
            seen[name] = setting()
            if name == "float8_e4m3fn":
                raise NotImplementedError("not on this GPU")
            return lambda: None

        return make

    names = ("float64", "float32", "tf32", "float16", "float8_e4m3fn")
    monkeypatch.setattr(ceilings, "_products", lambda: {name: product(name) for name in names})
    monkeypatch.setattr(ceilings, "_graph_us", lambda tools, call, calls: 1.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert [*ceilings._matrix_rates(None)] == [*names[:-1]]
    assert {name for name, value in seen.items() if value != "ieee"} == {"tf32"}
    assert readable() == noted


# -- whole evaluations -------------------------------------------------------------------------


def precision_notes(found: Evaluation) -> dict[str, str]:
    notes = [finding for finding in found.findings if finding.rule == "float32-precision"]
    assert all(note.severity == "note" for note in notes)
    return {note.message.partition("'s process")[0].removeprefix("the "): note.message for note in notes}


SAYS = "self.right(x) if torch.backends.cuda.matmul.fp32_precision == 'none' else x"


@pytest.mark.slow
def test_the_surroundings_do_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "1")
    found = run(tmp_path, f"return {SAYS}")
    assert found.status == "PASS", found.reason
    assert precision_notes(found) == {}


@pytest.mark.slow
def test_a_references_own_setting_is_said_and_stays_in_its_process(tmp_path: Path) -> None:
    found = run(tmp_path, f"return {SAYS}", reference=SET_HIGH + textwrap.dedent(REFERENCE))
    assert found.status == "PASS", found.reason
    notes = precision_notes(found)
    assert [*notes] == ["reference"] and "to tf32" in notes["reference"] and "own error" in notes["reference"]


@pytest.mark.slow
def test_a_setting_that_a_candidate_imports_is_said(tmp_path: Path) -> None:
    """No line of the candidate's file sets it, so lint sees nothing."""
    reference = SET_HIGH + textwrap.dedent(REFERENCE)
    found = run(
        tmp_path, "return self.right(x)", reference=reference, head="import reference\n", parts=("lint",)
    )
    assert found.status == "PASS", found.reason
    assert [*precision_notes(found)] == ["reference", "candidate"]


@pytest.mark.slow
def test_a_setting_made_in_a_call_is_said(tmp_path: Path) -> None:
    assert "import torch" in CANDIDATE
    body = """
        if self.calls == 2:
            getattr(torch, "set_float32_" + "matmul_precision")("medium")
        return self.right(x)
    """
    found = run(tmp_path, body)
    notes = precision_notes(found)
    assert [*notes] == ["candidate"] and "to bf16" in notes["candidate"]
