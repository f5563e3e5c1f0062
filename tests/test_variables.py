"""Environment variables with a value that means nothing: said once, and never an import that fails."""

from __future__ import annotations

import warnings

import pytest

from kernels import variables
from kernels.errors import ToolchainError
from kernels.fallback import torch_form_allowed
from kernels.variables import value_of


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "_warned", set())


@pytest.mark.parametrize("value", [None, "", "0", "1"])
def test_what_is_supported_is_taken_without_a_word(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELS_PREBUILD", raising=False)
    if value is not None:
        monkeypatch.setenv("KERNELS_PREBUILD", value)
    assert value_of("KERNELS_PREBUILD", "0", "1") == (value or "")  # a warning would be an error here


def test_another_value_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_PREBUILD", "off")
    with pytest.warns(RuntimeWarning, match="KERNELS_PREBUILD='off' is ignored; supported: 0, 1") as caught:
        assert value_of("KERNELS_PREBUILD", "0", "1") == value_of("KERNELS_PREBUILD", "0", "1") == ""
    assert len(caught) == 1


def test_where_warnings_are_errors_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_PREBUILD", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value_of("KERNELS_PREBUILD", "0", "1") == ""


def test_a_fallback_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_FALLBACK", "yes")
    missing = ToolchainError("no C++ compiler was found", "apt install g++")
    with pytest.warns(RuntimeWarning, match="KERNELS_FALLBACK='yes' is ignored; supported: torch"):
        assert not torch_form_allowed("gqa_attn", missing)


def test_direct_calls_by_another_word(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.jit import direct_calls

    monkeypatch.setenv("KERNELS_DIRECT_CALLS", "no")
    with pytest.warns(RuntimeWarning, match="KERNELS_DIRECT_CALLS='no' is ignored; supported: 0, 1"):
        direct_calls._are_wanted()


def test_an_early_build_by_another_word(monkeypatch: pytest.MonkeyPatch) -> None:
    from gqa_attn.model_new import OPERATOR

    started: list[str] = []
    monkeypatch.setattr(OPERATOR, "loaded", False)
    monkeypatch.setattr(OPERATOR.resolver, "prebuild", lambda: started.append("started"))
    monkeypatch.setenv("KERNELS_PREBUILD", "0")
    OPERATOR.prebuild()
    assert not started
    monkeypatch.setenv("KERNELS_PREBUILD", "no")
    with pytest.warns(RuntimeWarning, match="KERNELS_PREBUILD='no' is ignored"):
        OPERATOR.prebuild()
    assert started
