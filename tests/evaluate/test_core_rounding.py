"""What rounding to float32 moves: what it measures, and that it judges near ties by no luck."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.evaluate.evaluation import OutputError
from kernels.evaluate.grading import bounds_of, output_error
from kernels.evaluate.judge import evaluate
from kernels.evaluate.options import Options
from kernels.evaluate.result import as_json
from kernels.evaluate.rules import judged
from kernels.evaluate.subject import find_target
from kernels.evaluate.verify import differences
from kernels.evaluate.workers import rounding
from kernels.evaluate.workers.draws import FileSide
from kernels.evaluate.workers.exchange import tensors_of
from kernels.evaluate.workers.rounding import NoMovement, computes_in_float64, movement
from kernels.problem import Tolerance, find_problem

FAULTS = Path(__file__).resolve().parent / "faults"
PROBLEMS = Path(__file__).resolve().parent / "problems"
EPS = torch.finfo(torch.float32).eps
ALONE = Tolerance(atol=math.inf, rtol=0.0)


def moved(call: Callable[..., Any], *inputs: Any, seed: int = 1) -> list[Tensor]:
    return movement(call, inputs, seed=seed, seconds=60.0)


def doubles(*shape: int) -> Tensor:
    """Normal values that float32 holds."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).double()


# -- what it measures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.round() @ x.round().mT,
        lambda x: (x > 0.1).double().cumsum(-1),
        lambda x: torch.cat([x.mT.contiguous().mT, x.flip(0)]).sort(dim=-1).values[:, ::2],
        lambda x: torch.where(x > 0, x, -math.inf).amax(dim=-1),
        lambda x: x.clone().masked_fill_(x < 0, 0.0),
        lambda x: torch.softmax(x * torch.tensor([1.0, 0.0]).double().repeat(8) * 0 + 1, dim=-1),
    ],
    ids=["integers", "counts", "copies", "selections", "in place", "powers of two"],
)
def test_what_float32_holds_does_not_move(call: Callable[..., Any]) -> None:
    """Also where a step is nearby: a rounded or compared input is exact."""
    assert torch.equal(moved(call, doubles(16, 16))[0], torch.zeros_like(call(doubles(16, 16))))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x * math.pi,
        lambda x: x.clone().mul_(math.pi),
        lambda x: torch.mul(x, math.pi, out=torch.empty_like(x)),
        lambda x: torch.complex(x, x) * math.pi,
    ],
    ids=["returned", "in place", "out", "complex"],
)
def test_one_rounding_moves_by_its_units(call: Callable[..., Any]) -> None:
    """By up to UNITS units, and by no less than a quarter of that in the largest of all runs."""
    x = doubles(1000)
    found = moved(call, x)[0].reshape(1000, -1)
    relative = found / (math.pi * x.abs()).unsqueeze(1)
    assert relative.max() <= (rounding.UNITS + 1) * EPS
    assert relative.min() >= rounding.UNITS / 4 * EPS


def test_every_element_has_its_own() -> None:
    """A near tie moves its row and no other; what cancels moves by what was lost."""
    logits = torch.tensor([[1e6, 1e6 + 0.01], [1e6, 2e6]]).double() / 3
    moves = moved(lambda x: torch.softmax(x * 1.1, dim=-1), logits.float().double())[0]
    assert moves[0].min() > 1e-3
    assert moves[1].max() == 0.0
    cancelled = moved(lambda x: (x * 0.1 + 1e4) - 1e4, doubles(200))[0]
    assert 0.5 * EPS * 1e4 < cancelled.max() < 8 * EPS * 1e4


def test_fused_attention_is_seen_through() -> None:
    q, k, v = doubles(1, 1, 4, 8) * 1e3, doubles(1, 1, 4, 8) * 1e3, doubles(1, 1, 4, 8)
    k[..., 1, :] = k[..., 0, :] * (1 + EPS)
    q[..., 0, :] = k[..., 0, :]
    call = torch.nn.functional.scaled_dot_product_attention
    assert moved(call, q, k, v)[0][..., 0, :].max() > 1e-2


def test_the_same_seed_moves_the_same_and_the_generator_stays() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other, again = (moved(lambda x: x.exp(), doubles(50), seed=seed)[0] for seed in (1, 2, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_and_answers_that_are_kept_do_not_move() -> None:
    x, kept = doubles(8), torch.zeros(8).double()
    before = x.clone()
    moves = moved(lambda x: [kept.copy_(x * 0.1), x, 3], x)
    assert torch.equal(x, before)
    assert moves[0].max() > 0 and moves[1].max() == 0


def test_what_is_not_finite_is_no_measure() -> None:
    """exp of a little more than float64 holds, half of the time."""
    call = lambda x: torch.exp(x * (709.782 / 3.0))  # noqa: E731
    assert torch.equal(moved(call, torch.full((64,), 3.0).double())[0].isfinite(), torch.ones(64).bool())


def test_no_movement_in_time() -> None:
    def call(x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x * math.pi

    with pytest.raises(NoMovement, match="take too long"):
        movement(call, [doubles(2)], seed=1, seconds=0.05)
    start = time.monotonic()
    assert movement(call, [doubles(2)], seed=1, seconds=0.25)[0].min() > 0
    assert time.monotonic() - start < 0.32, "the runs that were done are enough"


@pytest.mark.parametrize(
    ("call", "x", "double"),
    [
        (lambda x: torch.softmax(x @ x.mT, dim=-1), torch.ones(4, 4), False),
        (lambda x: x.half().float() + x.to(torch.int64), torch.ones(4, 4), False),
        (lambda x: x.double().cumsum(-1).float(), torch.ones(4, 4), True),
        (lambda x: torch.fft.fft(x.to(torch.complex128)).abs(), torch.ones(4, 4), True),
        (lambda x: x.float(), torch.ones(4, 4).double(), True),
    ],
)
def test_a_reference_that_computes_in_float64(call: Callable[..., Any], x: Tensor, double: bool) -> None:
    assert computes_in_float64(call, [x]) is double


# -- how an output is judged by it -------------------------------------------------------------------


def error_of(got: Tensor, tolerance: Tolerance | None = ALONE, scale: float = 1.0) -> OutputError:
    """Against four ones: the reference is 1e-5 off in the second, and rounding moves the third by 1e-2."""
    oracle = torch.full((2, 2), scale, dtype=torch.float64)
    expected = oracle.float() + torch.tensor([[0.0, 1e-5], [0.0, 0.0]])
    moves = torch.tensor([[0.0, 0.0], [1e-2, 0.0]], dtype=torch.float64)
    bounds = bounds_of(torch.float32, tolerance)
    return output_error("", got + oracle.float(), expected, oracle, bounds, movement=moves)


@pytest.mark.parametrize(
    ("off", "wrong_at"),
    [
        ([[0.0, 1.9e-5], [1.9e-2, 1e-6]], None),
        ([[5e-6, 0.0], [0.0, 0.0]], (0, 0)),
        ([[0.0, 5e-5], [1e-2, 0.0]], (0, 1)),
        ([[0.0, 0.0], [2.2e-2, 0.0]], (1, 0)),
        ([[0.0, 0.0], [1e-2, 1e-4]], (1, 1)),
        ([[0.0, 0.0], [0.0, math.nan]], (1, 1)),
    ],
)
def test_each_element_is_held_to_its_own_bound(off: Any, wrong_at: tuple[int, int] | None) -> None:
    found = error_of(torch.tensor(off))
    assert bool(judged(found)) == (wrong_at is not None)
    assert found.bound_at == (wrong_at or found.bound_at)
    assert found.allowed_error == pytest.approx(2.0 * (found.reference_error or 0.0) + 1e-6)
    if wrong_at and not found.mismatched:
        assert f"at {wrong_at} the error against float64" in judged(found)


@pytest.mark.parametrize(
    ("off", "right"),
    [
        # 1e-4 + 1e-4 of the reference, or no further from float64 than 8 times its error and 64 eps ...
        ([[1.5e-4, 0.0], [0.0, 0.0]], True),
        ([[2.5e-4, 0.0], [0.0, 0.0]], False),
        # ... or than twice what rounding moves there.
        ([[0.0, 0.0], [1.9e-2, 0.0]], True),
        ([[0.0, 0.0], [2.2e-2, 0.0]], False),
        ([[2.5e-4, 0.0], [1.9e-2, 0.0]], False),
    ],
)
def test_a_plain_file_s_outputs_get_more_where_rounding_moves_more(off: Any, right: bool) -> None:
    found = error_of(torch.tensor(off), None)
    within = found.oracle_error is not None and found.oracle_error <= (found.allowed_error or 0.0)
    assert (not judged(found)) == (right and within)


FILES = {
    "level1": ("cumsum", "matmul", "scale_add_in_place", "scaled_matmul", "softmax", "transpose"),
    "level2": ("conv_bias_relu", "linear_gelu_norm", "running_cache", "spectrum_peaks"),
    "level3": ("attention_block", "mlp"),
}


@pytest.mark.parametrize("name", [f"{level}/{name}" for level, names in FILES.items() for name in names])
def test_well_conditioned_outputs_get_no_more(name: str) -> None:
    """Twice what rounding moves is less than half of the bound that the whole output has anyway."""
    path = PROBLEMS / f"{name}.py"
    side = FileSide(str(path), "cpu", "popcorn_pri" in path.read_text(encoding="utf-8"))
    draw = side.make("default", 0, 5, 7, "")
    assert draw.oracle is not None
    with torch.no_grad():
        assert not computes_in_float64(draw.model, draw.inputs)
        oracles = tensors_of(draw.oracle(*draw.inputs))
        expected = tensors_of(draw.model(*copy.deepcopy(draw.inputs)))
    moves = movement(draw.oracle, draw.inputs, seed=1, seconds=60.0)
    for (_, oracle), (_, theirs), most in zip(oracles, expected, moves, strict=True):
        if theirs.is_floating_point():
            bound = output_error("", theirs, theirs, oracle, bounds_of(theirs.dtype, None)).allowed_error
            assert 2 * most.max().item() <= 0.5 * (bound or 0.0)


def test_a_strict_tolerance_is_not_widened() -> None:
    found = error_of(torch.tensor([[0.0, 0.0], [1e-3, 0.0]]), Tolerance())
    assert judged(found) and found.bound_at is None


# -- near ties of the packages -----------------------------------------------------------------------

CASES = [
    (package, case.name)
    for package in ("gqa_attn", "fp8_attn")
    for case in find_problem(package).cases
    if math.isinf(case.tolerance.atol)
]


def forms(package: str) -> tuple[dict[str, Callable[..., Tensor]], dict[str, Callable[..., Tensor]]]:
    """The honest forms of ``faults/PACKAGE.py`` and others, and its faults."""
    text = (FAULTS / f"{package}.py").read_text(encoding="utf-8")

    def form(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"__name__": name}
        exec(text.replace('FORM = "plain"', f'FORM = "{name}"', 1), found)
        return found

    said = form("plain")
    honest = {name: form(name)["ModelNew"]() for name in said["ACCEPTED"]}
    for name, product in (("in a row", in_a_row), ("fma", with_fma), ("tree", as_a_tree)):
        module = form("plain")
        module["product"] = lambda a, b, product=product: product(a, b) if a.shape[-1] <= 32 else a @ b
        honest[name] = module["ModelNew"]()
    honest["scaled first"] = scaled_first(form("plain"))
    honest["compiled kernel"] = find_problem(package).model_new()
    return honest, {name: form(name)["ModelNew"]() for name in said["REJECTED"]}


def in_a_row(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(*a.shape[:-1], b.shape[-1])
    for i in range(a.shape[-1]):
        total = total + a[..., i : i + 1] * b[..., i : i + 1, :]
    return total


def with_fma(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(*a.shape[:-1], b.shape[-1])
    for i in range(a.shape[-1]):
        total = (total.double() + a[..., i : i + 1].double() * b[..., i : i + 1, :].double()).float()
    return total


def as_a_tree(a: Tensor, b: Tensor) -> Tensor:
    terms = a.unsqueeze(-1) * b.unsqueeze(-3)
    while terms.shape[-2] > 1:
        half = terms.shape[-2] // 2
        terms = torch.cat(
            [terms[..., :half, :] + terms[..., half : 2 * half, :], terms[..., 2 * half :, :]], -2
        )
    return terms.squeeze(-2)


def scaled_first(module: dict[str, Any]) -> Callable[..., Tensor]:
    """1 / sqrt(head_dim) and log2(e) go into q, and the weights are powers of two."""
    attend = module["attend"]
    module["FORM"] = "blockwise"
    module["attend"] = lambda q, k, v, scale: attend(q * scale, k, v, 1.0)
    return module["ModelNew"]()


def verdicts(package: str, name: str, seed: int, calls: dict[str, Callable[..., Tensor]]) -> dict[str, str]:
    """What the judge says to each of ``calls`` on one draw of a case."""
    problem = find_problem(package)
    case = next(case for case in problem.cases if case.name == name)
    with torch.no_grad():
        options = {"seed": seed, **case.options}
        inputs = problem.make_inputs(**case.shape, dtype=case.dtype, **options)
        expected, oracle = problem.model()(*inputs), problem.oracle(*inputs)
        (moves,) = movement(problem.oracle, inputs, seed=seed, seconds=60.0)
        bounds = bounds_of(expected.dtype, case.tolerance)
        assert bounds.alone
        return {
            form: judged(output_error("", call(*inputs), expected, oracle, bounds, movement=moves))
            for form, call in calls.items()
        }


def test_a_near_tie_that_the_reference_was_lucky_with() -> None:
    """Two keys nearly tie: the reference is 1.75e-7 off, our kernel 1e-2, and as right as it.

    The case logits_1e6 of ``evaluate fp8_attn --seed 5304989263657479``.
    """
    honest, faults = forms("fp8_attn")
    said = verdicts("fp8_attn", "logits_1e6", 1080521877, honest)
    assert {name: words for name, words in said.items() if words} == {}
    caught = (
        "tf32",
        "float16_accumulate",
        "bfloat16_accumulate",
        "maximum_of_first_block",
        "scale_forgotten",
    )
    said = verdicts("fp8_attn", "logits_1e6", 1080521877, {name: faults[name] for name in caught})
    assert all(said.values()), said


@pytest.mark.parametrize(("package", "name"), CASES)
def test_honest_forms_are_accepted_where_no_tolerance_applies(package: str, name: str) -> None:
    """And half-precision sums and TF32 are not."""
    honest, faults = forms(package)
    wrong = {form: faults[form] for form in ("tf32", "float16_accumulate", "non_causal", "mask_off_by_one")}
    for seed in (11, 12):
        said = verdicts(package, name, seed, honest | wrong)
        assert {form: words for form, words in said.items() if words and form not in wrong} == {}
        assert [form for form in wrong if not said[form]] == []


# -- near ties of plain files ------------------------------------------------------------------------

TIED = """
import torch
from torch import nn

class {name}(nn.Module):
    def forward(self, x, keys, values):
        return torch.softmax({logits}, dim=-1) @ values

def get_inputs():
    x, keys = torch.randn(1, 64), torch.randn(64, 8) * 1e4
    # Two keys nearly tie, far above the others.
    x[:, 0], keys[0, 2:] = 1.0, -1e6
    keys[:, 1] = keys[:, 0] + 0.1 * torch.randn(64)
    return [x, keys, torch.randn(8, 4)]

def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("logits", "status"),
    [
        ("x.flip(1) @ keys.flip(0)", "PASS"),
        ("x @ keys.bfloat16().float()", "WRONG_OUTPUT"),
    ],
    ids=["another order", "half precision"],
)
def test_files_whose_default_inputs_nearly_tie(logits: str, status: str, tmp_path: Path) -> None:
    """Also while timed: every call has content of its own, and luck of its own."""
    (tmp_path / "reference.py").write_text(TIED.format(name="Model", logits="x @ keys"))
    (tmp_path / "candidate.py").write_text(TIED.format(name="ModelNew", logits=logits))
    target = find_target("", str(tmp_path / "reference.py"), str(tmp_path / "candidate.py"))
    options = Options(trials=2, seconds=0.02, compile=False, seed=2, threads=1, parts=("timing",))
    found = evaluate(target, options)
    assert found.status == status, found.reason
    outputs = [(trial.kind, output) for trial in found.trials for output in trial.outputs]
    kinds = {kind for kind, output in outputs if output.bound_at is not None}
    assert kinds >= ({"default", "timed"} if status == "PASS" else {"default"})
    assert "what rounding moves" not in found.skipped
    assert differences(json.loads(json.dumps(as_json(found)))) == []
