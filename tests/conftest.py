"""What every test gets: a device to run on, kernels built ahead of time, a cache apart from the user's."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from concurrent.futures import wait

# Before torch starts its threads: the references' many tiny operations must not spin for
# cores that others use.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Tests build what they need themselves, in their own time.
os.environ.setdefault("KERNELS_PREBUILD", "0")

import pytest
import torch
from attention_checks import request_of

from kernels.jit.operator import Operator
from kernels.problem import Case, Problem, Request, find_problem


def pytest_configure(config: pytest.Config) -> None:
    """Keep built kernels beside pytest's own cache: apart from the user's, and there for the next run."""
    if hasattr(config, "cache"):
        os.environ.setdefault("KERNELS_CACHE_DIR", str(config.cache.mkdir("kernelwright")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``gpu`` where there is no GPU."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def _wanted(items: Iterable[pytest.Item]) -> dict[tuple[str, Request], Problem]:
    """What the selected tests will ask for: every (package, case, device) among their parameters."""
    wanted = {}
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is None or item.get_closest_marker("skip"):
            continue
        case, device = parameters.params.get("case"), parameters.params.get("device")
        package = getattr(item.module, "PACKAGE", None)
        if isinstance(case, Case) and device is not None and package is not None:
            wanted[package, request_of(case, device)] = find_problem(package)
    return wanted


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> None:
    """Build what the selected tests will ask for, side by side, instead of one by one as they ask.

    A build that fails is left to the tests that need it: they try again and show why.
    """
    from kernels.jit.load import submit
    from kernels.jit.spec import binding_spec, kernel_spec

    wanted = _wanted(request.session.items)
    problems = {package: problem for (package, _), problem in wanted.items()}
    specs = [binding_spec(problem.name, problem.binding) for problem in problems.values()]
    specs += [kernel_spec(problem, wish) for (_, wish), problem in wanted.items()]
    wait([submit(spec) for spec in specs])


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The device a test runs on."""
    return request.param


@pytest.fixture
def operator(problem: Problem) -> Operator:
    """The operator of the module's ``problem``, loaded."""
    found: Operator = importlib.import_module(f"{problem.name}.model_new").OPERATOR
    found.load()
    return found
