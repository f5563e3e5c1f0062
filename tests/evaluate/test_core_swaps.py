"""Two elements change places: what an input promises of itself stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.evaluate.workers.swaps import exchange_extremes


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3))


def banded(band: int) -> Tensor:
    return torch.triu(torch.tril(rand(9, 9), band), -band)


def mirrored(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


@pytest.mark.parametrize(
    ("x", "holds"),
    [
        (rand(300), lambda x: True),
        (rand(3, 4, 5), lambda x: True),
        (rand(2, 700, 3), lambda x: True),
        (torch.tril(rand(9, 9)), lambda x: torch.equal(x, torch.tril(x))),
        (torch.tril(rand(2, 9, 9)).bfloat16(), lambda x: torch.equal(x, torch.tril(x))),
        (torch.tril(rand(9, 9), -1) + torch.eye(9), lambda x: bool((x.diagonal() == 1).all())),
        (banded(2), lambda x: torch.equal(x, torch.triu(torch.tril(x, 2), -2))),
        (mirrored(rand(9, 9)), lambda x: torch.equal(x, x.mT)),
        (mirrored(rand(2, 3, 9, 9)), lambda x: torch.equal(x, x.mT)),
        (rand(9, 7).t(), lambda x: True),
        (rand(9, 2), lambda x: True),
        (torch.where(rand(9, 30) < 0.1, torch.nan, rand(9, 30)), lambda x: True),
    ],
)
def test_two_elements_change_places(x: Tensor, holds: Callable[[Tensor], bool]) -> None:
    before = x.clone()
    assert exchange_extremes([x, 3]) == ""
    symmetric = x.ndim > 1 and x.shape[-1] == x.shape[-2] and torch.equal(before, before.mT)
    assert int(((before != x) & (before == before)).sum()) == (4 if symmetric else 2)
    assert holds(x)
    assert torch.equal(before == 0, x == 0)
    if not symmetric:
        assert torch.allclose(before.double().nansum(-1), x.double().nansum(-1), rtol=1e-14)


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.eye(9), "two different"),
        (torch.diag(rand(9)), "two different"),
        (torch.tril(torch.ones(9, 9)), "two different"),
        (torch.nn.functional.one_hot(torch.arange(5)).float(), "two different"),
        (torch.zeros(9, 9).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf), "two different"),
        (rand(300).sort().values, "sorted"),
        (rand(3, 40).sort(descending=True).values, "sorted"),
        (rand(9, 1), "two different"),
        (torch.tensor(3.0), "no two elements"),
        (rand(4).expand(3, 4), "no two elements"),
        (torch.arange(9), "no floating"),
    ],
)
def test_what_has_no_two_elements_to_exchange(x: Tensor, reason: str) -> None:
    before = x.clone()
    assert reason in exchange_extremes([x])
    assert torch.equal(before, x)


def test_rows_that_are_sorted_stay_so_where_others_are_not() -> None:
    x = torch.cat([rand(5, 40).sort().values, rand(1, 40), rand(5, 40).sort().values])
    before = x.clone()
    assert exchange_extremes([x]) == ""
    assert (before != x).any(dim=-1).nonzero().tolist() == [[5]]


def test_a_second_view_does_not_take_it_back() -> None:
    x = rand(8, 8)
    before = x.clone()
    assert exchange_extremes([x, x.t(), {"again": x}]) == ""
    assert int((before != x).sum()) == 2


def test_nothing_to_exchange_says_why() -> None:
    assert exchange_extremes([1, "text"]) == "there is no tensor"
    assert "input[1]" in exchange_extremes([1, torch.eye(3)])
