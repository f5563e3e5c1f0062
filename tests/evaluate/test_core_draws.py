"""The reference's worker: what it draws, casts, and says of what its model returns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.evaluate.workers.candidate import Candidate
from kernels.evaluate.workers.exchange import map_value
from kernels.evaluate.workers.reference import Reference

HEAD = """
import torch
from torch import nn

def get_init_inputs():
    return []

class Model(nn.Module):
"""


def opened(folder: Path, text: str) -> Reference:
    """The worker's state with a file: ``HEAD``, and ``text``, the body of its Model and what follows."""
    (folder / "reference.py").write_text(HEAD + text)
    reference = Reference("cpu")
    reference.open(str(folder / "reference.py"), "", False)
    return reference


def drawn(reference: Reference, folder: Path, kind: str = "default", number: int = 0) -> dict[str, Any]:
    words = {"trial": 0, "seed": 5, "weights": 6, "call_seed": 7}
    return reference.draw(str(folder), f"{kind}{number}", kind, **words)


def inputs_of(reply: dict[str, Any], folder: Path) -> Any:
    return map_value(folder, reply["inputs"])[0]


# -- the cast to float32 ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "dtypes"),
    [
        # Numbers in bytes mean the same as floats ...
        ("return x.float() @ y.float() * 0.1", [torch.float32, torch.float32]),
        ("return torch.where(x > 3, x.float(), 0.0) @ y.float()", [torch.float32, torch.float32]),
        # ... and packed bits, or sums that wrap, do not.
        ("return ((x >> 2) & 3).float() @ y.float()", [torch.int8, torch.float32]),
        ("return (x * x).float() @ y.float()", [torch.int8, torch.float32]),
    ],
)
def test_integers_are_cast_where_they_mean_the_same(forward: str, dtypes: Any, tmp_path: Path) -> None:
    inputs = "torch.randint(-99, 99, (8, 8), dtype=torch.int8), torch.randn(8, 8).half()"
    text = f"    def forward(self, x, y):\n        {forward}\n\ndef get_inputs():\n    return [{inputs}]\n"
    reply = drawn(opened(tmp_path, text), tmp_path, "cast")
    assert [x.dtype for x in inputs_of(reply, tmp_path)] == dtypes


@pytest.mark.parametrize(
    ("forward", "inputs", "said"),
    [
        ("return (x & 15).float()", "torch.randint(0, 256, (8,), dtype=torch.uint8)", "takes integers alone"),
        ("assert x.dtype == torch.half; return x * 2", "torch.randn(8).half()", "refuses float32: Assertion"),
        ("return x * 2", "torch.randn(8)", "float32 already"),
        ("return x * 2", "torch.randint(0, 9, (8,))", "float32 already"),
    ],
)
def test_a_cast_that_the_reference_refuses(forward: str, inputs: str, said: str, tmp_path: Path) -> None:
    text = f"    def forward(self, x):\n        {forward}\n\ndef get_inputs():\n    return [{inputs}]\n"
    reference = opened(tmp_path, text)
    before = drawn(reference, tmp_path)
    assert said in drawn(reference, tmp_path, "cast")["skipped"]
    # What was drawn before is still the current draw.
    assert "outputs" in reference.expect(str(tmp_path), "after")
    assert reference._current().inputs[0].dtype == inputs_of(before, tmp_path)[0].dtype


# -- what a model holds, and what an input is --------------------------------------------------------


def test_outputs_in_the_memory_of_the_model(tmp_path: Path) -> None:
    text = """    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(4, 3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x, x + 1, [self.table[1:], self.weight], {"copy": self.table.clone()}

def get_inputs():
    return [torch.randn(4, 3)]
"""
    facts = drawn(opened(tmp_path, text), tmp_path)["facts"]
    assert (facts["returns_inputs"], facts["returns_state"]) == (["[0]"], ["[2][0]", "[2][1]"])


def test_plain_tensors_are_float64_as_well(tmp_path: Path) -> None:
    text = """    def __init__(self):
        super().__init__()
        self.inner = nn.ReLU()
        self.inner.scale = torch.full((3,), 0.1)
        self.weights, self.named = [torch.randn(3, 3), 2], {"bias": torch.randn(3)}
        self.order = torch.arange(3)

    def forward(self, x):
        return self.inner(x @ self.weights[0] + self.named["bias"])[:, self.order] * self.inner.scale

def get_inputs():
    return [torch.randn(4, 3)]
"""
    reference = opened(tmp_path, text)
    drawn(reference, tmp_path)
    reply = reference.expect(str(tmp_path), "expected")
    assert map_value(tmp_path, reply["oracle"])[0].dtype == torch.float64
    model = reference._current().model
    assert model.inner.scale.dtype == model.weights[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("inputs", "init", "said"),
    [
        (
            "__import__('numpy').ones(3)",
            "",
            "get_inputs() returned a value of type ndarray; supported: tensors",
        ),
        (
            "torch.ones(3)",
            "object()",
            "get_init_inputs() returned a value of type object; supported: tensors",
        ),
    ],
)
def test_what_a_file_may_not_return(inputs: str, init: str, said: str, tmp_path: Path) -> None:
    text = f"""    def __init__(self, *_):
        super().__init__()

    def forward(self, x):
        return torch.as_tensor(x) * 2

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return [{init}]
"""
    if "numpy" in inputs:
        pytest.importorskip("numpy")
    with pytest.raises(TypeError) as raised:
        drawn(opened(tmp_path, text), tmp_path)
    assert str(raised.value).startswith(said)


def test_a_named_tuple_keeps_its_names(tmp_path: Path) -> None:
    text = """    def forward(self, batch):
        return batch.x @ batch.weights[0] + batch.y

from typing import NamedTuple

class Batch(NamedTuple):
    x: torch.Tensor
    weights: list
    y: float = 3.0

def get_inputs():
    return [Batch(torch.randn(4, 3).bfloat16(), [torch.randn(3, 3).bfloat16()])]
"""
    reference = opened(tmp_path, text)
    for kind in ("default", "cast"):
        (batch,) = inputs_of(drawn(reference, tmp_path, kind), tmp_path)
        assert (type(batch).__name__, batch._fields, batch.y) == ("Batch", ("x", "weights", "y"), 3.0)
        assert batch.x.dtype == (torch.bfloat16 if kind == "default" else torch.float32)
    reference.contents(str(tmp_path), "sets", [1, 2])
    assert "oracle" in reference.expect(str(tmp_path), "expected")
    assert reference._sets[1][0].x.shape == (4, 3)


def test_every_generator_is_seeded_on_both_sides(tmp_path: Path) -> None:
    """Python's and numpy's as well, where inputs and a model are made."""
    pytest.importorskip("numpy")
    draws = "[random.random(), *np.random.rand(2).tolist(), torch.rand(()).item()]"
    text = f"""    def __init__(self):
        super().__init__()
        self.drawn = {draws}

    def forward(self, x):
        return x + torch.tensor(self.drawn)

import random
import numpy as np

def get_inputs():
    return [torch.tensor({draws})]
"""
    reference = opened(tmp_path, text)
    reply = drawn(reference, tmp_path)
    torch.rand(9)
    again = drawn(reference, tmp_path, number=1)
    assert torch.equal(inputs_of(reply, tmp_path)[0], inputs_of(again, tmp_path)[0])
    (tmp_path / "candidate.py").write_text(HEAD.replace("Model", "ModelNew") + text)
    candidate = Candidate("cpu")
    candidate.open(str(tmp_path / "candidate.py"), "")
    candidate.construct(str(tmp_path), reply["init"], reply["state"], 6)
    assert candidate.model.drawn == reference._current().model.drawn


# -- the float64 form ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.softmax(x.float() @ x.float().mT, dim=-1, dtype=torch.float32).to(x.dtype)",
        "return (x.to(torch.float32) * 0.1).sum(-1, dtype=torch.float32)",
        "return x @ torch.full((4, 4), 0.1, dtype=torch.float32) + torch.arange(4) / 3",
        "return x.mT.reshape(4, 4) @ torch.tensor([0.1] * 16, dtype=torch.float32).view(4, 4).exp()",
        "out = torch.zeros(4, 4); out[:2] = x[:2].float() / 3; return out",
        "return torch.cat([x.float() / 3, torch.ones(1, 4)]) @ TABLE[:4]",
        "return torch.view_as_complex((x.float() / 3).reshape(8, 2)).abs()",
        "return (x > 0).float().mean(-1) / 3",
        "return nn.functional.layer_norm(x.float(), (4,))",
        "y = x[None, None].float(); return nn.functional.scaled_dot_product_attention(y, y, y)",
    ],
)
def test_float32_inside_is_float64_in_the_float64_form(forward: str, tmp_path: Path) -> None:
    text = f"""    def forward(self, x):
        {forward}

TABLE = torch.full((5, 3), 0.1)

def get_inputs():
    return [torch.randn(4, 4)]
"""
    reference = opened(tmp_path, text)
    drawn(reference, tmp_path)
    reply = reference.expect(str(tmp_path), "expected")
    oracle, expected = (map_value(tmp_path, reply[name])[0] for name in ("oracle", "outputs"))
    assert (oracle.dtype, expected.dtype) == (torch.float64, torch.float32)
    assert torch.allclose(oracle.float(), expected, rtol=1e-5, atol=1e-5)
    # No float32 number any more: what float32 loses shows.
    assert not torch.equal(oracle.float().double(), oracle)
    reply = reference.movement(str(tmp_path), "moved", 3, 60.0)
    assert float(map_value(tmp_path, reply["movement"])[0][0].max()) > 0
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("return (x.float().view(torch.int32) >> 1).view(torch.float32)", "the bits of a float"),
        ("return TABLE.copy_(x) * 2", "returns float32"),
        ("return x.bfloat16() @ TABLE.bfloat16() @ x.new_ones(4, 4, dtype=x.dtype).to(HALF)", "it raises"),
    ],
)
def test_what_has_no_float64_form(forward: str, said: str, tmp_path: Path) -> None:
    text = f"""    def forward(self, x):
        HALF = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
        {forward}

TABLE = torch.ones(4, 4)

def get_inputs():
    return [torch.randn(4, 4)]
"""
    reference = opened(tmp_path, text)
    drawn(reference, tmp_path)
    assert said in reference.expect(str(tmp_path), "expected")["no_oracle"]


def test_the_float64_form_of_many_operations_is_not_much_slower(tmp_path: Path) -> None:
    text = """    def forward(self, x):
        for _ in range(5000):
            x = x * 0.5 + 0.1
        return x

def get_inputs():
    return [torch.randn(4, 4)]
"""
    reference = opened(tmp_path, text)
    drawn(reference, tmp_path)
    start = time.process_time()
    assert "oracle" in reference.expect(str(tmp_path), "expected")
    assert time.process_time() - start < 2.0
