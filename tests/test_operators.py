"""Both operators as torch sees them: opcheck, compile, export, copies, modes, meta tensors, fallback."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from attention_checks import assert_close, assert_same, gradients
from torch import Tensor, nn

from kernels.errors import CompileError, ToolchainError
from kernels.evaluate.outcome import status_of
from kernels.evaluate.status import Status
from kernels.evaluate.workers.isolation import WorkerFailed
from kernels.jit.direct_calls import no_direct_call
from kernels.jit.load import stats
from kernels.problem import Tolerance, find_problem

PACKAGES = ["gqa_attn", "fp8_attn"]


@pytest.fixture(params=PACKAGES)
def package(request):
    return request.param


@pytest.fixture
def problem(package):
    return find_problem(package)


@pytest.fixture
def operator(package):
    """The package's operator, loaded."""
    found = importlib.import_module(f"{package}.model_new").OPERATOR
    found.load()
    return found


@pytest.fixture
def fresh_compiler():
    """No compiled code from another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(problem, device: str, seqlen: int = 20, dtype: str = "float32", seed: int = 0) -> list[Tensor]:
    """Small inputs of ``problem`` whose float tensors can take gradients."""
    if problem.name == "gqa_attn":
        shape = {"batch": 2, "seqlen_q": seqlen, "seqlen_k": seqlen, "num_heads": 4, "num_kv_heads": 2}
    else:
        shape = {"batch": 2, "seqlen": seqlen, "num_heads": 4}
    return problem.make_inputs(**shape, head_dim=32, dtype=dtype, device=device, seed=seed)


# Registration


def test_names_and_schemas(package, operator):
    assert str(operator.differentiable) == f"kernelwright.{package}.default"
    assert str(operator.forward) == f"kernelwright.{package}_forward.default"
    assert not operator.forward._schema.is_mutable and not operator.differentiable._schema.is_mutable


def test_opcheck_without_gradient(problem, operator, device):
    for op in (operator.forward, operator.differentiable):
        torch.library.opcheck(op, make(problem, device))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own
def test_opcheck_with_gradient(problem, operator, device):
    torch.library.opcheck(operator.differentiable, [x.requires_grad_() for x in make(problem, device)])


def test_opcheck_by_dtype(problem, operator, device):
    for dtype in ("float16", "bfloat16") if problem.name == "gqa_attn" else ("int8", "uint8"):
        torch.library.opcheck(operator.forward, make(problem, device, dtype=dtype))


# torch.compile and torch.export


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_without_gradient(problem, device):
    inputs = make(problem, device)
    compiled = torch.compile(problem.model_new(), fullgraph=True)
    assert_same(compiled(*inputs), problem.model_new()(*inputs))


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_with_gradient(problem, device):
    inputs = make(problem, device)
    wanted = list(range(len(inputs)))
    compiled = torch.compile(problem.model_new(), fullgraph=True, backend="aot_eager")
    eager = gradients(problem.model_new(), inputs, wanted)
    for got, want in zip(gradients(compiled, inputs, wanted), eager, strict=True):
        assert_close(got, want, Tolerance(1e-5, 1e-5))


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_inside_a_larger_function(problem, device):
    """One graph with operations before and after it."""
    model = problem.model_new()

    def larger(*inputs: Tensor) -> Tensor:
        return model(inputs[0] * 2, *inputs[1:]).square().sum()

    inputs = make(problem, device)
    assert_close(torch.compile(larger, fullgraph=True, backend="aot_eager")(*inputs), larger(*inputs))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("gradient", [False, True])
def test_compile_with_dynamic_shapes(problem, gradient, device):
    """One compiled graph serves all sequence lengths."""
    from torch._dynamo.testing import CompileCounterWithBackend

    make(problem, device)
    problem.model_new()(*make(problem, device))  # load first: this is not about the first call
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(problem.model_new(), fullgraph=True, backend=counter, dynamic=True)
    wanted = list(range(len(make(problem, device)))) if gradient else []
    for seqlen in (20, 33, 47, 100):
        inputs = make(problem, device, seqlen)
        if gradient:
            eager = gradients(problem.model_new(), inputs, wanted)
            for got, want in zip(gradients(compiled, inputs, wanted), eager, strict=True):
                assert_close(got, want, Tolerance(1e-5, 1e-5))
        else:
            assert_same(compiled(*inputs), problem.model_new()(*inputs))
    assert counter.frame_count == 1


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_reports_wrong_arguments(problem):
    inputs = make(problem, "cpu")
    inputs[2] = inputs[2][:, :-1]
    with pytest.raises(Exception, match="must have one shape"):
        torch.compile(problem.model_new(), fullgraph=True, backend="eager")(*inputs)


FIRST_CALL = """
import sys, torch
from kernels.problem import find_problem
torch.manual_seed(0)
problem = find_problem(sys.argv[1])
inputs = problem.get_inputs()
compiled = torch.compile(problem.model_new(), fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(*inputs), problem.model()(*inputs), atol=1e-4, rtol=1e-4)
torch.testing.assert_close(compiled(*inputs), problem.model()(*inputs), atol=1e-4, rtol=1e-4)
"""


def test_first_call_ever_through_compile(package, tmp_path):
    """Nothing loaded, nothing built: tracing loads the operator instead of breaking on it."""
    environment = {**os.environ, "KERNELS_CACHE_DIR": str(tmp_path), "KERNELS_PREBUILD": "0"}
    command = [sys.executable, "-c", FIRST_CALL, package]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_export(problem, device):
    inputs = make(problem, device)
    model = problem.model_new()
    model(*inputs)
    exported = torch.export.export(model, tuple(inputs))
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert names == [f"kernelwright.{problem.name}_forward.default"]
    assert_same(exported.module()(*inputs), model(*inputs))


# The module


def test_copies_of_the_model_work(problem, device, tmp_path):
    inputs = make(problem, device)
    model = problem.model_new()
    want = model(*inputs)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert type(other) is problem.model_new
        assert_same(other(*inputs), want)
    assert not model.state_dict()


def test_model_is_a_module_with_hooks(problem, device):
    inputs = make(problem, device)
    model = nn.ModuleList([problem.model_new()]).to(device).eval()[0]
    model.register_forward_hook(lambda module, arguments, out: out + 1)
    assert_close(model(*inputs), problem.model_new()(*inputs) + 1)


@pytest.mark.parametrize("where", ["subclass", "class", "instance", "every module", "compiled"])
def test_call_runs_what_stands_in_for_forward(problem, device, where, monkeypatch):
    """The short way from a call to the kernel is left whenever somebody put something in its place."""
    inputs = make(problem, device)
    want = problem.model_new()(*inputs) + 1
    kept = problem.model_new.forward

    def forward(self, *arguments):
        return kept(self, *arguments) + 1

    model = problem.model_new()
    if where == "subclass":
        model = type("Sub", (problem.model_new,), {"forward": forward})()
    elif where == "class":
        monkeypatch.setattr(problem.model_new, "forward", forward)
    elif where == "instance":
        model.forward = forward.__get__(model)
    elif where == "every module":
        handle = nn.modules.module.register_module_forward_hook(lambda module, arguments, out: out + 1)
    else:
        model._compiled_call_impl = forward.__get__(model)
    try:
        assert_same(model(*inputs), want)
    finally:
        if where == "every module":
            handle.remove()


def test_call_names_what_is_wrong_with_its_arguments(problem):
    inputs = make(problem, "cpu")
    model = problem.model_new()
    for gradient in (True, False):
        with torch.set_grad_enabled(gradient):
            with pytest.raises(TypeError, match="Tensor"):
                model(None, *inputs[1:])
            with pytest.raises(TypeError, match="argument"):
                model(*inputs[:-1])


def test_arguments_by_name(problem, device):
    import inspect

    inputs = make(problem, device)
    names = list(inspect.signature(problem.model.forward).parameters)
    assert names == list(inspect.signature(problem.model_new.forward).parameters)
    assert inspect.signature(problem.model.__init__) == inspect.signature(problem.model_new.__init__)
    arguments = dict(zip(names[1:], inputs, strict=True))
    assert_same(problem.model_new()(**arguments), problem.model_new()(*inputs))


def test_inputs_are_not_changed(problem, device):
    inputs = make(problem, device)
    before = [x.clone() for x in inputs]
    versions = [x._version for x in inputs]
    problem.model_new()(*inputs)
    for x, was in zip(inputs, before, strict=True):
        assert_same(x, was)
    assert [x._version for x in inputs] == versions


def test_threads_share_a_model(problem, device):
    model = problem.model_new()
    inputs = [make(problem, device, seed=seed) for seed in range(8)]
    want = [model(*x) for x in inputs]
    got: dict[int, Tensor] = {}

    def work(i: int) -> None:
        for _ in range(20):
            got[i] = model(*inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(8):
        assert_same(got[i], want[i])


def test_a_thousand_shapes_build_nothing(problem, device):
    """Batch and sequence length are run-time values."""
    model = problem.model_new()
    model(*make(problem, device))
    before = stats()["builds"]
    inputs = make(problem, device, seqlen=40)
    seen = set()
    for batch in range(1, 26):
        for seqlen in range(1, 41):
            arguments = [x[:1, :seqlen].expand(batch, -1, -1, -1) for x in inputs[:3]] + inputs[3:]
            seen.add(tuple(model(*arguments).shape[:2]))
    assert len(seen) == 1000
    assert stats()["builds"] == before


def test_peers_give_the_same_result(problem, device):
    """What the benchmark compares with computes the same thing, or says that it does not take it."""
    inputs = [x.to(device) for x in problem.get_inputs()]
    want = problem.model()(*inputs)
    compared = 0
    for name, peer in problem.peers(device).items():
        try:
            out = peer(*inputs)
        except TypeError as refused:
            assert "does not take" in str(refused), name
            continue
        error = (out - want).abs().max().item()
        assert error < (3e-2 if "bfloat16" in name else 1e-4), f"{name}: {error}"
        compared += 1
    assert compared >= 2


# Modes and unusual tensors


def test_inference_mode(problem, device):
    inputs = make(problem, device)
    want = problem.model_new()(*inputs)
    with torch.inference_mode():
        made_inside = [x.clone() for x in inputs]
        out = problem.model_new()(*inputs)
        assert out.is_inference()
        assert_same(out, want)
    assert_same(problem.model_new()(*made_inside), want)


def test_parameters_and_subclasses_are_tensors(problem, device):
    """A plain subclass goes through; nn.Parameter takes its gradient."""

    class Plain(Tensor):
        pass

    inputs = make(problem, device)
    want = problem.model_new()(*inputs)
    assert_same(problem.model_new()(*(x.as_subclass(Plain) for x in inputs)).as_subclass(Tensor), want)
    parameters = [nn.Parameter(x) for x in inputs]
    problem.model_new()(*parameters).sum().backward()
    assert all(p.grad is not None for p in parameters)


class Opaque(Tensor):
    """A subclass without memory that implements nothing."""

    @staticmethod
    def __new__(cls, like: Tensor) -> Opaque:
        return Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def test_a_subclass_without_memory_is_a_type_error(problem):
    """It must not be read as if it had a data pointer."""
    inputs = make(problem, "cpu")
    for i in range(len(inputs)):
        arguments = list(inputs)
        arguments[i] = Opaque(inputs[i])
        with pytest.raises(TypeError):
            problem.model_new()(*arguments)


def test_other_layouts_are_type_errors(problem):
    inputs = make(problem, "cpu")
    with pytest.raises(TypeError, match="layout"):
        problem.model_new()(inputs[0].to_sparse(), *inputs[1:])
    with pytest.raises(TypeError, match="layout"):
        problem.model_new()(inputs[0].to_mkldnn(), *inputs[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors announce themselves as a prototype
        nested = torch.nested.nested_tensor(list(inputs[0]))
    with pytest.raises(TypeError, match="nested"):
        problem.model_new()(nested, *inputs[1:])


def test_lazily_negated_views(problem, device):
    """The imaginary part of a conjugate is a view whose memory holds the values negated."""
    inputs = make(problem, device)
    want = problem.model_new()(-inputs[0], *inputs[1:])
    lazy = torch.complex(torch.zeros_like(inputs[0]), inputs[0]).conj().imag
    assert lazy.is_neg()
    assert_same(problem.model_new()(lazy, *inputs[1:]), want)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # torch.func.jvp's own
def test_forward_mode_derivatives(problem, device):
    """A tangent passes through instead of vanishing."""
    inputs = make(problem, device)
    tangents = [torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(device) for x in inputs]
    got = torch.func.jvp(problem.model_new(), tuple(inputs), tuple(tangents))
    want = torch.func.jvp(problem.model(), tuple(inputs), tuple(tangents))
    assert_close(got[0], want[0])
    assert_close(got[1], want[1], Tolerance(1e-3, 1e-4))


def _batched(q: Tensor) -> Tensor:
    return torch.stack([q, 2 * q])


def _leaf_outside_vmap(of: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    leaf = _batched(q).requires_grad_()
    (gradient,) = torch.autograd.grad(torch.vmap(of)(leaf).sum(), leaf)
    return gradient


# Derivatives of a function of q with one value.
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "grad": lambda of, q: torch.func.grad(of)(q),
    "vjp": lambda of, q: torch.func.vjp(of, q)[1](torch.ones((), device=q.device))[0],
    "jacrev": lambda of, q: torch.func.jacrev(of)(q),
    "grad of grad": lambda of, q: torch.func.grad(lambda x: torch.func.grad(of)(x).square().sum())(q),
    "hessian": lambda of, q: torch.func.hessian(of)(q),
    "vmap of grad": lambda of, q: torch.vmap(torch.func.grad(of))(_batched(q)),
    "grad of vmap": lambda of, q: torch.func.grad(lambda x: torch.vmap(of)(x).sum())(_batched(q)),
    "leaf outside vmap": _leaf_outside_vmap,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # torch.func.hessian's own
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch_func(problem, device, transform):
    """vmap included: without a gradient it runs the kernel, and hides that one is asked for outside it."""
    inputs = make(problem, device, seqlen=6)
    q, rest = inputs[0][..., :8], [x[..., :8] if x.dim() == 4 else x for x in inputs[1:]]

    def derivative(model: nn.Module) -> Tensor:
        return TRANSFORMS[transform](lambda x: model(x, *rest).square().sum(), q)

    want = derivative(problem.model())
    assert want.abs().max() > 0
    assert_close(derivative(problem.model_new()), want, Tolerance(atol=1e-4 * want.abs().max().item()))


def test_jacobian_of_every_argument(problem, device):
    """The backward under vmap, with every argument as the one that is not batched."""
    inputs = make(problem, device, seqlen=3)
    numbers = tuple(range(len(inputs)))
    got = torch.func.jacrev(problem.model_new(), numbers)(*inputs)
    for jacobian, want in zip(got, torch.func.jacrev(problem.model(), numbers)(*inputs), strict=True):
        assert_close(jacobian, want, Tolerance(atol=1e-4 * want.abs().max().item()))


def test_wrong_arguments_under_a_transform(problem):
    inputs = make(problem, "cpu")
    with pytest.raises(TypeError, match="given NoneType"):
        torch.func.grad(lambda q: problem.model_new()(q, None, *inputs[2:]).sum())(inputs[0])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("transform", ["grad", "vmap of grad", "grad of vmap"])
def test_compile_of_a_transform(problem, device, transform):
    inputs = make(problem, device)

    def derivative(model: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda q: TRANSFORMS[transform](lambda x: model(x, *inputs[1:]).square().sum(), q)

    compiled = torch.compile(derivative(problem.model_new()), fullgraph=True, backend="aot_eager")
    want = derivative(problem.model())(inputs[0])
    assert_close(compiled(inputs[0]), want, Tolerance(atol=1e-4 * want.abs().max().item()))


def test_checkpoint_recomputes_the_same(problem, device):
    inputs = make(problem, device)
    wanted = list(range(len(inputs)))

    def checkpointed(*leaves: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(problem.model_new(), *leaves, use_reentrant=False)

    plain = gradients(problem.model_new(), inputs, wanted)
    for got, want in zip(gradients(checkpointed, inputs, wanted), plain, strict=True):
        assert_same(got, want)


def test_meta_tensors(problem):
    """Shape and dtype without data, in a program that never runs a kernel; and the same errors."""
    inputs = [x.to("meta") for x in make(problem, "cpu", dtype="float16")]
    if problem.name == "fp8_attn":
        assert all(x.dtype == torch.float32 for x in inputs[3:])
    out = problem.model_new()(*inputs)
    assert out.device.type == "meta" and out.shape == inputs[0].shape and out.is_contiguous()
    assert out.dtype == (torch.float16 if problem.name == "gqa_attn" else torch.float32)
    with pytest.raises(ValueError, match="must have one shape"):
        problem.model_new()(inputs[0], inputs[1], inputs[2][:, :-1], *inputs[3:])


def test_fake_rule_agrees_with_strided_inputs(problem, operator, device):
    """The output is contiguous whatever the inputs' strides, for the kernel and for the fake rule alike."""
    inputs = make(problem, device)
    inputs[:3] = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3]]
    torch.library.opcheck(operator.forward, inputs, test_utils="test_faketensor")
    assert problem.model_new()(*inputs).is_contiguous()


# Without memory


@pytest.mark.parametrize("direct", [True, False], ids=["direct call", "operator"])
def test_an_output_that_memory_does_not_hold(problem, operator, device, direct, monkeypatch):
    """Torch's own type, and words that the judge takes for what it is."""
    x = torch.zeros(1, 1, 1, 1, device=device)
    scales = [torch.ones(1, device=device)] * (problem.name == "fp8_attn") * 3
    model = problem.model_new()
    if not direct:
        for name in ("direct", "fast_direct"):
            monkeypatch.setattr(operator, name, no_direct_call)
    for _ in range(2):  # direct calls serve from the third one on
        model(x, x, x, *scales)
    large = x.expand(2**31, 2**16, 1, 1)  # 2^49 bytes: more than there are addresses
    error = torch.OutOfMemoryError if device == "cuda" else RuntimeError
    with pytest.raises(error) as caught:
        model(large, large, large, *scales)
    reply = {"type": type(caught.value).__name__, "text": str(caught.value)}
    assert status_of(WorkerFailed("error", "", reply)) is Status.OUT_OF_MEMORY
    with pytest.raises(
        RuntimeError, match=r"allocating \[2147483648, 65536, 1, 1\], 562949953421312 bytes, failed"
    ):
        operator.forward(large, large, large, *scales)
    assert model(x, x, x, *scales).item() == 0


# Without a compiler


@pytest.fixture
def broken(package, monkeypatch):
    """Makes loading the package's operator fail with a given exception."""
    operator = importlib.import_module(f"{package}.model_new").OPERATOR

    def break_with(error: Exception) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr(operator, "loaded", False)
        monkeypatch.setattr(operator, "load", fail)
        monkeypatch.setattr("kernels.fallback._warned", set())

    return break_with


def test_no_compiler_names_the_fix(problem, broken, monkeypatch):
    monkeypatch.delenv("KERNELS_FALLBACK", raising=False)
    broken(ToolchainError("no C++ compiler was found", "apt install g++"))
    with pytest.raises(ToolchainError, match="fix: apt install g"):
        problem.model_new()(*make(problem, "cpu"))


def test_no_compiler_runs_the_torch_form_with_one_warning(problem, broken, monkeypatch):
    monkeypatch.setenv("KERNELS_FALLBACK", "torch")
    broken(ToolchainError("no C++ compiler was found", "apt install g++"))
    inputs = make(problem, "cpu", seqlen=50)
    with pytest.warns(RuntimeWarning, match="slow torch form.*no C\\+\\+ compiler") as caught:
        out = problem.model_new()(*inputs)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert_close(out, problem.model()(*inputs))
    wanted = list(range(len(inputs)))
    want = gradients(problem.model(), inputs, wanted)  # warnings are errors: none may follow
    for got, expected in zip(gradients(problem.model_new(), inputs, wanted), want, strict=True):
        assert_close(got, expected)


def test_a_kernel_that_does_not_compile_is_no_reason_to_fall_back(problem, broken, monkeypatch):
    monkeypatch.setenv("KERNELS_FALLBACK", "torch")
    broken(CompileError("a-kernel", "error: expected ';'"))
    with pytest.raises(CompileError, match="expected ';'"):
        problem.model_new()(*make(problem, "cpu"))


def test_wrong_arguments_come_before_a_missing_compiler(problem, broken, monkeypatch):
    monkeypatch.setenv("KERNELS_FALLBACK", "torch")
    broken(ToolchainError("no C++ compiler was found", "apt install g++"))
    with pytest.raises(TypeError, match="given NoneType"):
        problem.model_new()(None, *make(problem, "cpu")[1:])


WITHOUT_COMPILER = """
import sys, torch
from kernels.problem import find_problem
torch.manual_seed(0)
problem = find_problem(sys.argv[1])
inputs = problem.get_inputs()
torch.testing.assert_close(problem.model_new()(*inputs), problem.model()(*inputs), atol=1e-4, rtol=1e-4)
"""


def test_a_machine_without_compiler(package, tmp_path):
    """End to end: nothing on PATH and an empty cache."""
    tools = ("CC", "CXX", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "KERNELS_FALLBACK")
    bare = {name: value for name, value in os.environ.items() if name not in tools}
    bare |= {"PATH": str(tmp_path), "KERNELS_CACHE_DIR": str(tmp_path / "cache"), "KERNELS_PREBUILD": "0"}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_COMPILER, package]
        return subprocess.run(command, env=bare | more, capture_output=True, text=True, timeout=300)

    refused = run()
    assert refused.returncode == 1 and "ToolchainError" in refused.stderr and "fix: " in refused.stderr
    served = run(KERNELS_FALLBACK="torch")
    assert served.returncode == 0, served.stderr
    assert served.stderr.count("runs its slow torch form") == 1
