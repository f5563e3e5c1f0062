"""Torch's float32 matmul precision: which kernel it chooses, eagerly, compiled, captured, and back again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attention_checks import assert_same, cuda_kernels, gradients
from test_hopper import hopper
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.device import cpu_arch
from kernels.jit.load import stats
from kernels.jit.operator import Operator, use_variant
from kernels.problem import Problem, Request, Variant, find_problem

PACKAGES = ["gqa_attn", "fp8_attn"]
FILLS = str(Path(__file__).parent / "jit" / "tiny.cpp")


def legacy(precision: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(precision)


def of_matmul(precision: str) -> Callable[[], None]:
    def setting() -> None:
        torch.backends.cuda.matmul.fp32_precision = precision

    return setting


def of_everything(precision: str) -> Callable[[], None]:
    def setting() -> None:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.fp32_precision = precision

    return setting


def tf32_switch() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def of_matmul_against_everything() -> None:
    of_everything("tf32")()
    of_matmul("ieee")()


LOW = {
    "high": legacy("high"),
    "medium": legacy("medium"),
    "matmul": of_matmul("tf32"),
    "everything": of_everything("tf32"),
    "allow_tf32": tf32_switch,
}
FULL = {
    "highest": legacy("highest"),
    "matmul": of_matmul("ieee"),
    "everything": of_everything("ieee"),
    "everything_none": of_everything("none"),
    "matmul_against_everything": of_matmul_against_everything,
}


def torch_default() -> None:
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.fixture(autouse=True)
def _default_setting() -> Iterator[None]:
    torch_default()
    yield
    torch_default()


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def problem(package: str) -> Problem:
    return find_problem(package)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """No compiled code from another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(
    problem: Problem, head_dim: int, device: str = "cpu", seqlen: int = 9, heads: int = 2
) -> list[Tensor]:
    """Inputs of ``problem``, in float32, whose group size is one."""
    shape = {"batch": 1, "num_heads": heads, "head_dim": head_dim}
    if problem.name == "gqa_attn":
        shape |= {"seqlen_q": seqlen, "seqlen_k": seqlen, "num_kv_heads": heads}
    else:
        shape |= {"seqlen": seqlen}
    return problem.make_inputs(**shape, dtype="float32", device=device)


# A fast form on the CPU: it fills the output with head_dim.

# What a binding was once told stays as long as the process, so each test has a head_dim of its own.
_head_dims = {name: iter(range(201, 257)) for name in PACKAGES}


@pytest.fixture
def fast_head_dim(operator: Operator, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> int:
    """A head_dim for which there is a fast form here, as there is on a GPU; nothing has met it yet."""
    head_dim = next(_head_dims[problem.name])
    fills = Variant(
        name="fills",
        device="cpu",
        source=FILLS,
        launcher="tiny::launch",
        template_arguments=lambda request: ("float", str(request.head_dim)),
        serves=lambda request: request.head_dim == head_dim,
        why="",
        fast=True,
    )
    extended = replace(problem, variants=(fills, *problem.variants))
    problem_here = operator.resolver._problem

    def its_problem() -> Problem:
        return extended

    its_problem.__code__ = its_problem.__code__.replace(co_filename=problem_here.__code__.co_filename)
    monkeypatch.setattr(operator.resolver, "_problem", its_problem)
    monkeypatch.setattr(operator.resolver, "_fast_form_of", lambda *numbers: numbers[3] == head_dim)
    monkeypatch.setattr(operator, "asks", False)
    return head_dim


def is_fast(out: Tensor, head_dim: int) -> bool:
    """Whether the fast form made ``out``, and all of it."""
    filled = out == head_dim
    assert filled.all() or not filled.any()
    return bool(filled.all())


@pytest.mark.parametrize("setting", LOW)
def test_a_lower_setting_runs_the_fast_form(
    problem: Problem, fast_head_dim: int, setting: str, operator: Operator
) -> None:
    """From the first call on, whether or not the setting was there when the operator was loaded."""
    inputs, model = make(problem, fast_head_dim), problem.model_new()
    LOW[setting]()
    assert operator.fast_allowed()
    for _ in range(2):
        assert is_fast(model(*inputs), fast_head_dim)
    assert operator.asks
    torch_default()
    assert not is_fast(model(*inputs), fast_head_dim)


@pytest.mark.parametrize("setting", FULL)
def test_full_precision_runs_the_accurate_form(
    problem: Problem, fast_head_dim: int, setting: str, operator: Operator
) -> None:
    inputs, model = make(problem, fast_head_dim), problem.model_new()
    want = model(*inputs)
    assert not is_fast(want, fast_head_dim)
    legacy("high")()
    assert is_fast(model(*inputs), fast_head_dim)
    FULL[setting]()
    assert not operator.fast_allowed()
    assert_same(model(*inputs), want)


def test_a_setting_that_torch_refuses_changes_nothing(problem: Problem, fast_head_dim: int) -> None:
    inputs, model = make(problem, fast_head_dim), problem.model_new()
    for low in (False, True):
        legacy("high" if low else "highest")()
        with suppress(RuntimeError, UserWarning):
            torch.set_float32_matmul_precision("low")
        with suppress(RuntimeError, UserWarning):
            torch.backends.cuda.matmul.fp32_precision = "bf16"
        assert is_fast(model(*inputs), fast_head_dim) is low


def test_both_apis_mixed(problem: Problem, fast_head_dim: int) -> None:
    """Torch's own get_float32_matmul_precision raises in between."""
    inputs, model = make(problem, fast_head_dim), problem.model_new()
    steps = [of_matmul("tf32"), legacy("highest"), of_everything("tf32"), of_matmul("ieee"), legacy("medium")]
    for step, fast in zip(steps, (True, False, True, False, True), strict=True):
        step()
        assert is_fast(model(*inputs), fast_head_dim) is fast


def test_calls_that_no_fast_form_serves_never_ask(
    problem: Problem, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would pay for it at every call."""
    inputs, model = make(problem, 32), problem.model_new()
    monkeypatch.setattr(operator, "asks", False)
    with torch.no_grad():
        for _ in range(2):  # the first has its kernel loaded, the second finds the direct calls
            model(*inputs)
        if operator.direct(*inputs) is None:
            pytest.skip("no direct calls with this torch")
        monkeypatch.setattr(operator, "fp32_precision", lambda *names: pytest.fail("asked"))
        model(*inputs)
    assert not operator.asks


def test_loading_under_a_lower_setting_asks_from_the_start(
    problem: Problem, fast_head_dim: int, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No accurate kernel is built to find out that another is wanted."""
    legacy("high")()
    monkeypatch.setattr(operator, "loaded", False)
    before = len(operator.resolver._resolved)
    assert is_fast(problem.model_new()(*make(problem, fast_head_dim)), fast_head_dim)
    assert operator.asks and len(operator.resolver._resolved) == before + 1
    asked = operator.resolver._resolved["cpu", "float32", fast_head_dim, 1]
    assert [numbers[5] for numbers, _ in asked] == [1]


def test_gradients_pass_through_the_fast_form(problem: Problem, fast_head_dim: int) -> None:
    """The backward recomputes in torch, as it does for the accurate form."""
    inputs = make(problem, fast_head_dim)
    wanted = list(range(len(inputs)))
    want = gradients(problem.model_new(), inputs, wanted)
    legacy("high")()
    outs = []

    def forward(*leaves: Tensor) -> Tensor:
        outs.append(problem.model_new()(*leaves))
        return outs[-1]

    got = gradients(forward, inputs, wanted)
    assert is_fast(outs[0].detach(), fast_head_dim)
    torch_default()
    for ours, theirs in zip(got, want, strict=True):
        assert torch.isfinite(ours).all() and ours.shape == theirs.shape


@pytest.mark.parametrize("way", ["environment", "use"])
def test_a_named_variant_comes_before_the_setting(
    problem: Problem, fast_head_dim: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, model = make(problem, fast_head_dim), problem.model_new()
    request = Request("cpu", cpu_arch(), "float32", fast_head_dim, 1)
    if way == "environment":
        monkeypatch.setenv("KERNELS_VARIANT", "vectorised")
    else:
        use_variant(problem.name, request, "vectorised")
    legacy("high")()
    assert not is_fast(model(*inputs), fast_head_dim)
    use_variant(problem.name, request, "fills")
    assert is_fast(model(*inputs), fast_head_dim)
    torch_default()
    assert is_fast(model(*inputs), fast_head_dim)
    use_variant(problem.name, request, "")
    assert not is_fast(model(*inputs), fast_head_dim)
    legacy("high")()
    assert is_fast(model(*inputs), fast_head_dim), "the setting decides again"


# torch.compile and torch.export


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_graphs_follow_the_setting(problem: Problem, fast_head_dim: int, backend: str) -> None:
    """One graph a precision, and each is used again as the setting goes back and forth."""
    from torch._dynamo.testing import CompileCounterWithBackend

    inputs = make(problem, fast_head_dim)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(problem.model_new(), fullgraph=True, backend=counter)
    want = compiled(*inputs)
    for low in (legacy("high"), of_matmul("tf32"), legacy("medium")):
        low()
        assert is_fast(compiled(*inputs), fast_head_dim)
        torch_default()
        assert_same(compiled(*inputs), want)
    assert counter.frame_count == 2


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("setting", LOW)
def test_dynamo_guards_on_every_setting(problem: Problem, fast_head_dim: int, setting: str) -> None:
    """Compiled under the default first, then under the setting, and the other way round."""
    inputs = make(problem, fast_head_dim)
    for low_first in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(problem.model_new(), fullgraph=True, backend="eager")
        for low in (low_first, not low_first, low_first):
            torch_default()
            if low:
                LOW[setting]()
            assert is_fast(compiled(*inputs), fast_head_dim) is low


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_with_gradient_follows_the_setting(problem: Problem, fast_head_dim: int) -> None:
    inputs = [x.requires_grad_() for x in make(problem, fast_head_dim)]
    compiled = torch.compile(problem.model_new(), fullgraph=True, backend="aot_eager")
    for low in (True, False, True):
        legacy("high" if low else "highest")()
        out = compiled(*inputs)
        assert is_fast(out.detach(), fast_head_dim) is low
        out.sum().backward()


@pytest.mark.parametrize("strict", [False, True])
def test_export_holds_what_was_set(problem: Problem, fast_head_dim: int, strict: bool) -> None:
    inputs = make(problem, fast_head_dim)
    legacy("high")()
    exported = torch.export.export(problem.model_new(), tuple(inputs), strict=strict)
    torch_default()
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert names == [f"kernelwright.{problem.name}_fast_forward.default"]
    assert is_fast(exported.module()(*inputs), fast_head_dim)


def test_a_traced_graph_returns_what_was_set(problem: Problem, fast_head_dim: int) -> None:
    """Fake tensors reach no kernel that would tell that there is a fast form."""
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = make(problem, fast_head_dim)
    legacy("high")()
    traced = make_fx(lambda *leaves: problem.model_new()(*leaves), tracing_mode="fake")(*inputs)
    torch_default()
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    assert str(output.args[0].target) == f"kernelwright.{problem.name}_fast_forward.default"
    assert is_fast(traced(*inputs), fast_head_dim)


# The operators


def test_fast_names_and_schemas(package: str, operator: Operator) -> None:
    assert str(operator.fast_differentiable) == f"kernelwright.{package}_fast.default"
    assert str(operator.fast_forward) == f"kernelwright.{package}_fast_forward.default"
    for fast, accurate in (
        (operator.fast_forward, operator.forward),
        (operator.fast_differentiable, operator.differentiable),
    ):
        assert str(fast._schema).partition("(")[2] == str(accurate._schema).partition("(")[2]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own
def test_opcheck_of_the_fast_operators(problem: Problem, operator: Operator) -> None:
    inputs = make(problem, 32)
    for op in (operator.fast_forward, operator.fast_differentiable):
        torch.library.opcheck(op, inputs)
    torch.library.opcheck(operator.fast_differentiable, [x.requires_grad_() for x in inputs])


class Called(TorchDispatchMode):
    """Notes the names of this project's operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "kernelwright":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def test_what_is_called(problem: Problem, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting, with and without a gradient, by the call and by forward."""
    monkeypatch.setattr(operator, "asks", True)
    inputs, model, name = make(problem, 32), problem.model_new(), problem.name
    for low, prefix in ((False, name), (True, f"{name}_fast"), (False, name)):
        legacy("high" if low else "highest")()
        with Called() as called:
            model(*inputs)
            model.forward(*inputs)
            model(*(x.detach().requires_grad_() for x in inputs))
        assert called.names[:2] == [f"{prefix}_forward"] * 2
        assert set(called.names[2:]) == {prefix}


@pytest.mark.parametrize("setting", ["high", "medium", "everything"])
def test_the_cpu_kernel_does_not_change(problem: Problem, setting: str) -> None:
    inputs, model = make(problem, 40), problem.model_new()
    want = model(*inputs)
    before = stats()["builds"]
    LOW[setting]()
    assert_same(model(*inputs), want)
    leaves = [x.detach().requires_grad_() for x in inputs]
    assert_same(model(*leaves).detach(), want)
    assert stats()["builds"] == before


# On Hopper

ERRORS = {"gqa_attn": (1e-5, 3e-3), "fp8_attn": (1e-5, 1e-3)}


def on_gpu(problem: Problem) -> tuple[list[Tensor], Tensor]:
    """Inputs for which there is a fast form, and the answer in float64."""
    inputs = make(problem, 128, "cuda", seqlen=1000, heads=4)
    return inputs, problem.oracle(*inputs)


def runs_fast(problem: Problem, out: Tensor, oracle: Tensor) -> bool:
    """Whether ``out`` is as far off as the fast form is; else it is as near as float32."""
    error = (out.detach() - oracle).abs().max().item()
    least, most = ERRORS[problem.name]
    assert error < most
    if error > least:
        return True
    assert error < 5e-6
    return False


@hopper()
@pytest.mark.parametrize("setting", LOW)
def test_gpu_error_follows_the_setting(problem: Problem, setting: str) -> None:
    (inputs, oracle), model = on_gpu(problem), problem.model_new()
    want = model(*inputs)
    assert not runs_fast(problem, want, oracle)
    LOW[setting]()
    assert runs_fast(problem, model(*inputs), oracle)
    torch_default()
    assert_same(model(*inputs), want)


@hopper(pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"))
def test_gpu_kernels_differ(problem: Problem) -> None:
    """The two forms are two instances of one template, so their names differ, and come back."""
    (inputs, _), model = on_gpu(problem), problem.model_new()
    names = []
    for precision in ("highest", "high", "highest", "medium"):
        legacy(precision)()
        model(*inputs)
        names.append(cuda_kernels(lambda: model(*inputs)))
    accurate, fast = names[0], names[1]
    assert any("hopper" in name for name in accurate) and any("hopper" in name for name in fast)
    assert set(accurate) != set(fast)
    assert set(names[2]) == set(accurate) and set(names[3]) == set(fast)


@hopper(pytest.mark.usefixtures("fresh_compiler"))
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gpu_compiled_graphs_alternate(problem: Problem, backend: str) -> None:
    inputs, oracle = on_gpu(problem)
    compiled = torch.compile(problem.model_new(), fullgraph=True, backend=backend)
    want = compiled(*inputs)
    for low in (legacy("high"), of_matmul("tf32"), of_everything("tf32")):
        low()
        assert runs_fast(problem, compiled(*inputs), oracle)
        torch_default()
        assert_same(compiled(*inputs), want)


@hopper()
def test_gpu_graphs_hold_what_was_captured(problem: Problem) -> None:
    (inputs, oracle), model = on_gpu(problem), problem.model_new()
    graphs = {}
    for precision in ("highest", "high"):
        legacy(precision)()
        model(*inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(*inputs)
        graphs[precision] = (graph, out)
    for setting in ("highest", "high"):
        legacy(setting)()
        for precision, (graph, out) in graphs.items():
            out.zero_()
            graph.replay()
            assert runs_fast(problem, out, oracle) is (precision == "high")


@hopper()
def test_gpu_forward_with_a_gradient(problem: Problem) -> None:
    inputs, oracle = on_gpu(problem)
    leaves = [x.requires_grad_() for x in inputs]
    for precision in ("high", "highest"):
        legacy(precision)()
        out = problem.model_new()(*leaves)
        assert runs_fast(problem, out, oracle) is (precision == "high")
        assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(out.sum(), leaves))


@hopper()
@pytest.mark.parametrize("name", ["portable", "hopper"])
def test_gpu_a_named_variant_comes_before_the_setting(problem: Problem, name: str) -> None:
    (inputs, oracle), model = on_gpu(problem), problem.model_new()
    request = Request("cuda", "sm_90a", "float32", 128, 1)
    legacy("high")()
    use_variant(problem.name, request, name)
    try:
        assert not runs_fast(problem, model(*inputs), oracle)
    finally:
        use_variant(problem.name, request, "")
    assert runs_fast(problem, model(*inputs), oracle)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_gpu_other_dtypes_do_not_change(dtype: str) -> None:
    problem = find_problem("gqa_attn")
    inputs = [x.to(getattr(torch, dtype)) for x in make(problem, 128, "cuda", seqlen=500)]
    want = problem.model_new()(*inputs)
    legacy("high")()
    assert_same(problem.model_new()(*inputs), want)


@pytest.mark.gpu
def test_gpu_default_shape_does_not_change(problem: Problem) -> None:
    inputs = [x.cuda() for x in problem.get_inputs()]
    want = problem.model_new()(*inputs)
    before = stats()["builds"]
    legacy("high")()
    assert_same(problem.model_new()(*inputs), want)
    assert stats()["builds"] == before
