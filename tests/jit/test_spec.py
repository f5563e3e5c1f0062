"""Names of specialisations, and which variant serves a request."""

from __future__ import annotations

import pytest
import tiny_problem

from kernels.jit.spec import binding_spec, kernel_spec
from kernels.problem import Request, choose_variant, names_of_variants

REQUEST = Request("cpu", "x86-64-v3", "float32", 32, 4)


def test_name_says_what_it_is() -> None:
    spec = kernel_spec(
        tiny_problem.problem(
            tiny_problem.variant(template_arguments=lambda r: ("float", str(r.head_dim), str(r.group_size)))
        ),
        REQUEST,
    )
    assert spec.name == "tiny-fill-x86-64-v3-float32-d32-g4"
    assert spec.launcher == "tiny::launch<float, 32, 4>"
    assert spec.params == (("dtype", "float32"), ("head_dim", "32"), ("group_size", "4"))


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_run_time_group_size_is_no_parameter(group_size: int) -> None:
    """A kernel that reads group_size at run time has one library for every group size."""
    problem = tiny_problem.problem()
    spec = kernel_spec(problem, Request("cpu", "x86-64-v3", "float32", 32, group_size))
    assert spec == kernel_spec(problem, REQUEST)
    assert spec.name == "tiny-fill-x86-64-v3-float32-d32"


def test_first_variant_that_serves_wins() -> None:
    fast = tiny_problem.variant(name="fast", serves=lambda request: request.head_dim == 64)
    other_device = tiny_problem.variant(name="gpu", device="cuda")
    problem = tiny_problem.problem(other_device, fast, tiny_problem.variant(name="any"))
    assert kernel_spec(problem, Request("cpu", "x86-64-v3", "float32", 64)).variant == "fast"
    assert kernel_spec(problem, REQUEST).variant == "any"


def test_no_variant_names_request_and_variants() -> None:
    with pytest.raises(ValueError, match=r"dtype=int8, head_dim=32.*on cpu \(x86-64-v3\).*: fill"):
        kernel_spec(tiny_problem.problem(), Request("cpu", "x86-64-v3", "int8", 32))
    with pytest.raises(ValueError, match="variants for this device: none"):
        kernel_spec(tiny_problem.problem(), Request("cuda", "sm_90a", "float32", 32))


def test_a_variant_that_is_not_chosen_serves_by_name_alone() -> None:
    waiting = tiny_problem.variant(name="waiting", chosen=False)
    problem = tiny_problem.problem(waiting, tiny_problem.variant(name="any"))
    assert choose_variant(problem, REQUEST).name == "any"
    assert kernel_spec(problem, REQUEST).variant == "any"
    assert kernel_spec(problem, REQUEST, "waiting").name == "tiny-waiting-x86-64-v3-float32-d32"
    assert kernel_spec(problem, REQUEST, "any") == kernel_spec(problem, REQUEST)
    with pytest.raises(ValueError, match="no kernel serves .*; variants for this device: waiting"):
        choose_variant(tiny_problem.problem(waiting), REQUEST)


def test_a_fast_variant_serves_where_that_is_allowed() -> None:
    fast = tiny_problem.variant(name="fast", fast=True)
    problem = tiny_problem.problem(fast, tiny_problem.variant(name="any"))
    assert kernel_spec(problem, REQUEST).variant == "any"
    assert kernel_spec(problem, REQUEST, fast=True).variant == "fast"
    assert kernel_spec(problem, REQUEST, "any", fast=True).variant == "any"
    assert kernel_spec(problem, REQUEST, "fast").variant == "fast"
    waiting = tiny_problem.variant(name="waiting", fast=True, chosen=False)
    assert (
        choose_variant(tiny_problem.problem(waiting, *problem.variants[1:]), REQUEST, fast=True).name == "any"
    )
    with pytest.raises(ValueError, match="no kernel serves .*; variants for this device: fast"):
        choose_variant(tiny_problem.problem(fast), REQUEST)


def test_a_variant_asked_for_wrongly_names_what_there_is() -> None:
    narrow = tiny_problem.variant(name="narrow", serves=lambda request: request.head_dim == 64)
    other_device = tiny_problem.variant(name="gpu", device="cuda")
    problem = tiny_problem.problem(other_device, narrow, tiny_problem.variant(name="any"))
    for name, said in (
        ("dance", r"tiny has no variant 'dance'; it has: gpu \(cuda\), narrow \(cpu\), any \(cpu\)"),
        ("gpu", "tiny: variant 'gpu' is not for cpu; variants for it: narrow, any"),
        (
            "narrow",
            r"tiny: variant 'narrow' does not serve dtype=float32, head_dim=32, .*; variants that do: any",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            kernel_spec(problem, REQUEST, name)
    assert names_of_variants(problem) == ["gpu", "narrow", "any"]
    assert names_of_variants(problem, "cpu") == ["narrow", "any"]


def test_binding_spec() -> None:
    spec = binding_spec("tiny", "bindings/tiny.cpp")
    assert spec.is_binding and spec.name == "tiny-binding"
    assert not tiny_problem.cpu_spec().is_binding
