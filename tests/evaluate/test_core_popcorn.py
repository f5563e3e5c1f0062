"""``popcorn_pri``: every form of arguments, and draws that agree within a trial."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.evaluate.workers.popcorn import PopcornPri

FORMS: list[Callable[[PopcornPri], int]] = [
    lambda p: p.jitter_int(64),
    lambda p: p.jitter_int(64, 0.5, 2.0),
    lambda p: p.jitter_int(64, (0.5, 2.0)),
    lambda p: p.jitter_int(64, [0.5, 2.0], 8),
    lambda p: p.jitter_int(64, 0.5, 2.0, 8),
    lambda p: p.jitter_int(64, 0.25),
    lambda p: p.jitter_int(default=64, low_ratio=0.5, high_ratio=2.0, align=16),
    lambda p: p.jitter_int(64, min_ratio=0.5, max_ratio=2.0),
    lambda p: p.jitter_int(64, low_ratio=0.5),
    lambda p: p.trial_dim(64, ratios=(0.5, 1.0, 2.0), align=4),
    lambda p: p.trial_dim(64, ratio=0.5, multiple_of=4),
    lambda p: p.trial_dim("N", 64, 0.5, 2.0),
    lambda p: p.trial_dim(64, 0.5, 2.0, name="N"),
    lambda p: p.trial_dim(64, min=40, max=90),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: Callable[[PopcornPri], int]) -> None:
    assert form(PopcornPri(0, 5)) == 64
    values = {form(PopcornPri(1, seed)) for seed in range(40)}
    assert len(values) > 1
    assert all(isinstance(value, int) and 16 <= value <= 128 for value in values)


def test_draws_agree_within_a_trial() -> None:
    one, other = PopcornPri(3, 11), PopcornPri(3, 11)
    assert one.jitter_int(100) == one.jitter_int(100) == one.trial_dim(100)
    assert one.trial_dim("K", 100) == one.trial_dim(100, name="K")
    # Whatever was drawn before: get_init_inputs may be called first.
    assert other.jitter_int(7, 0.1, 9) > 0
    assert other.jitter_int(100) == one.jitter_int(100)
    assert one.draws["100"] == one.jitter_int(100)


def test_other_trials_draw_otherwise() -> None:
    assert len({PopcornPri(1, seed).jitter_int(1000) for seed in range(20)}) > 10


@pytest.mark.parametrize("align", [1, 8, 64])
def test_align(align: int) -> None:
    for seed in range(50):
        value = PopcornPri(1, seed).jitter_int(100, 0.01, 3.0, align=align)
        assert value % align == 0
        assert value >= align


def test_choices() -> None:
    assert {PopcornPri(1, s).trial_dim(64, ratios=(0.5, 1, 2)) for s in range(60)} == {32, 64, 128}


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.jitter_int(),
        lambda p: p.jitter_int(None),
        lambda p: p.jitter_int(True),
        lambda p: p.jitter_int(64, spread=3),
        lambda p: p.jitter_int(64, 0.5, 2.0, 8, 9),
    ],
)
def test_forms_that_are_none(call: Callable[[PopcornPri], int]) -> None:
    with pytest.raises(TypeError, match="popcorn_pri"):
        call(PopcornPri(1, 1))
