"""Every CUDA kernel, compiled by nvcc for each architecture that is promised; needs no GPU.

The build is the JIT's own, with an architecture in place of a device. Skipped where
there is no nvcc, unless ``KERNELS_TEST_NVCC=require`` says there must be one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from kernels.discover import problem_packages
from kernels.errors import ToolchainError
from kernels.jit.load import obtain, submit
from kernels.jit.spec import KernelSpec, kernel_spec
from kernels.problem import Problem, Request, Variant, find_problem
from kernels.toolchain import find_cuda

ARCHS = ("sm_80", "sm_90a", "sm_120")
PROBLEMS = [find_problem(name) for name in problem_packages()]
# Every dtype, at a head_dim that is not the default one, and head_dims at the ends of the range.
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"]


def _spec(problem: Problem, variant: Variant, request: Request) -> KernelSpec:
    """The specialisation of this variant, whichever variant the problem would pick, if it picks it at all."""
    return kernel_spec(problem, request, variant.name)


def _defaults() -> dict[str, KernelSpec]:
    found = {}
    for problem in PROBLEMS:
        for variant in problem.variants:
            for arch in ARCHS:
                request = problem.default_request("cuda", arch)
                if variant.device == "cuda" and variant.serves(request):
                    spec = _spec(problem, variant, request)
                    found[spec.name] = spec
    return found


def _others() -> dict[str, KernelSpec]:
    found = {}
    for problem in PROBLEMS:
        for variant in problem.variants:
            default = problem.default_request("cuda", "sm_90a")
            requests = [replace(default, dtype=dtype, head_dim=80) for dtype in DTYPES]
            requests += [replace(default, head_dim=head_dim) for head_dim in (1, 33, 256)]
            requests += [replace(default, arch="sm_75")]
            for request in requests:
                if variant.device == "cuda" and variant.serves(request):
                    spec = _spec(problem, variant, request)
                    found[spec.name] = spec
    return found


DEFAULTS, OTHERS = _defaults(), _others()


@pytest.fixture(scope="module")
def nvcc() -> None:
    """A CUDA compiler that fits this torch; skips, or fails where one is required."""
    try:
        find_cuda()
    except ToolchainError as missing:
        if os.environ.get("KERNELS_TEST_NVCC") == "require":
            pytest.fail(f"device code was not compiled: {missing}")
        pytest.skip(f"no nvcc: {missing.missing}")


@pytest.fixture(scope="module")
def started(nvcc: None) -> None:
    """All default specialisations under way at once; the tests join them."""
    for spec in DEFAULTS.values():
        submit(spec)


def test_every_problem_has_cuda_kernels_for_every_architecture() -> None:
    for problem in PROBLEMS:
        for arch in ARCHS:
            assert [n for n in DEFAULTS if n.startswith(f"{problem.name}-") and f"-{arch}-" in n], (
                problem.name,
                arch,
            )


def test_every_variant_is_compiled_chosen_or_not() -> None:
    compiled = {(spec.problem, spec.variant) for spec in [*DEFAULTS.values(), *OTHERS.values()]}
    for problem in PROBLEMS:
        for variant in problem.variants:
            assert variant.device != "cuda" or (problem.name, variant.name) in compiled, variant.name


def test_a_variant_that_is_not_chosen_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS[0]
    waiting = replace(problem.variants[0], name="waiting", serves=lambda request: True, chosen=False)
    extended = replace(problem, variants=(waiting, *problem.variants))
    monkeypatch.setattr(sys.modules[__name__], "PROBLEMS", [extended])
    assert [name for name in _defaults() if name.startswith(f"{problem.name}-waiting-")]
    request = problem.default_request("cuda", "sm_90a")
    assert kernel_spec(extended, request) == kernel_spec(problem, request)


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_specialisation_compiles_without_spills(name: str, started: None) -> None:
    built = obtain(DEFAULTS[name])
    assert built.path.stat().st_size > 0
    assert built.resources, "the compiler reported no kernel"
    for resources in built.resources:
        assert 0 < resources.registers <= 255
        spilled = resources.spill_store_bytes + resources.spill_load_bytes
        assert spilled == 0, f"{resources.kernel} spills {spilled} bytes"
        assert resources.stack_bytes == 0, (
            f"{resources.kernel} uses {resources.stack_bytes} bytes of local memory"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_specialisations_compile(name: str, nvcc: None) -> None:
    built = obtain(OTHERS[name])
    assert built.resources, "the compiler reported no kernel"
