"""The resolver, the Python rules, and what reaches the caller when something fails."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_problem
import torch

from kernels import device
from kernels.errors import CaptureError, CompileError, LaunchError, ToolchainError
from kernels.jit import build, load, warm
from kernels.jit import operator as operator_module
from kernels.jit import resolver as resolver_module
from kernels.jit.operator import Operator, use_variant
from kernels.jit.resolver import Resolver
from kernels.problem import Problem, Request


def make_operator(problem: Problem) -> Operator:
    return Operator(
        "tiny",
        lambda: problem,
        fake=lambda q, k, v: q.new_empty(q.shape),
        setup_context=lambda ctx, inputs, output: None,
        backward=lambda ctx, grad: (grad * 3, None, None),
    )


@pytest.fixture(scope="module")
def current() -> dict[str, Problem]:
    """The problem that the one operator of this process stands for at the moment."""
    return {"problem": tiny_problem.problem()}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, current: dict[str, Problem]) -> Operator:
    """The operator, loaded once: torch takes its names once per process."""
    operator = make_operator(current["problem"])
    operator.resolver._problem = lambda: current["problem"]
    operator.load()
    return operator


@pytest.fixture
def operator(loaded: Operator, current: dict[str, Problem], cache_dir: Path) -> Iterator[Operator]:
    yield loaded
    current["problem"] = tiny_problem.problem()


def tensor(head_dim: int = 8, **options: Any) -> torch.Tensor:
    return torch.zeros(1, 4, 2, head_dim, **options)


def test_load_is_idempotent(operator: Operator) -> None:
    forward = operator.forward
    operator.load()
    assert operator.loaded and operator.forward is forward
    assert operator.forward is torch.ops.kernelwright.tiny_forward.default
    assert operator.differentiable is torch.ops.kernelwright.tiny.default


def test_a_binding_without_the_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that names its problem, in a comment, and still registers another's operators."""
    monkeypatch.setattr(operator_module, "_operators", [])
    problem = tiny_problem.problem()
    other = Operator("tinier", lambda: problem, fake=print, setup_context=print, backward=print)
    monkeypatch.setattr(other.resolver, "binding", lambda: None)
    with pytest.raises(LaunchError, match=r"tiny_binding.cpp registers no operator kernelwright::tinier;"):
        other.load()
    assert not other.loaded


def test_second_operator_of_the_same_name_shares_the_library(operator: Operator) -> None:
    """As when a problem package is reloaded in a notebook."""
    again = make_operator(tiny_problem.problem())
    again.load()
    assert again.forward is operator.forward
    operator.loaded = False  # and the first can load once more
    operator.load()
    assert operator.forward(tensor(), tensor(), tensor())[0, 0, 0, 0] == 8


def test_specialisation_is_built_at_the_first_call_only(operator: Operator) -> None:
    before = load.stats()["builds"]
    x = tensor(56)
    for _ in range(3):
        assert operator.forward(x, x, x).unique().tolist() == [56]
    assert load.stats()["builds"] == before + 1


def test_a_sweep_over_batch_and_seqlen_builds_once(operator: Operator) -> None:
    before = load.stats()
    shapes = [(batch, seqlen) for batch in range(1, 26) for seqlen in range(1, 41)]
    for batch, seqlen in shapes:
        x = torch.zeros(batch, seqlen, 1, 64)
        assert operator.forward(x, x, x).shape == x.shape
    assert len(shapes) == 1000
    after = load.stats()
    assert after["builds"] - before["builds"] == 1 and after["hits"] == before["hits"]


def test_autograd_rule(operator: Operator) -> None:
    q = tensor(requires_grad=True)
    out = operator.differentiable(q, tensor(), tensor())
    out.sum().backward()
    assert q.grad is not None and q.grad.unique().tolist() == [3]
    with torch.no_grad():
        assert not operator.differentiable(q, tensor(), tensor()).requires_grad
    assert not operator.forward(tensor(), tensor(), tensor()).requires_grad


@pytest.mark.parametrize("way", ["torch's own", "at once"])
def test_autograd_rule_on_a_torch_without_the_private_maker(
    monkeypatch: pytest.MonkeyPatch, operator: Operator, way: str
) -> None:
    registered = []
    if way == "at once":
        monkeypatch.delattr(torch._library.autograd, "make_autograd_impl")
    monkeypatch.setattr(torch.library, "register_autograd", lambda *args, **options: registered.append(args))
    made = []
    rules = SimpleNamespace(impl=lambda *args, **options: made.append(args))
    operator._register_autograd(rules, "tiny")
    assert len(registered) == (way == "at once")
    assert len(made) == (way == "torch's own")


def test_opcheck(operator: Operator) -> None:
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator.differentiable, (tensor(), tensor(), tensor()), test_utils=tests)


def test_fake_tensors(operator: Operator) -> None:
    with torch._subclasses.FakeTensorMode():
        x = tensor(40)
        assert operator.forward(x, x, x).shape == x.shape
        assert operator.differentiable(x, x, x).shape == x.shape


@pytest.mark.slow
def test_first_call_inside_compile(
    cache_dir: Path, python: Callable[..., subprocess.CompletedProcess]
) -> None:
    """torch.compile(fullgraph=True) before anything is loaded, forward and backward."""
    code = """
import torch, tiny_problem
from test_operator import make_operator, tensor
OPERATOR = make_operator(tiny_problem.problem())
class Model(torch.nn.Module):
    def forward(self, q, k, v):
        if not OPERATOR.loaded:
            OPERATOR.load()
        if torch.is_grad_enabled() and q.requires_grad:
            return OPERATOR.differentiable(q, k, v) + 1
        return OPERATOR.forward(q, k, v) + 1
model = torch.compile(Model(), fullgraph=True, backend="aot_eager")
assert not OPERATOR.loaded
for _ in range(2):
    assert model(tensor(), tensor(), tensor()).unique().tolist() == [9]
q = tensor(requires_grad=True)
model(q, tensor(), tensor()).sum().backward()
assert q.grad.unique().tolist() == [3]
"""
    python(code)


# -- what goes wrong -----------------------------------------------------------------------------


def call(operator: Operator, x: torch.Tensor) -> BaseException:
    """The exception that a call raises, explained as ModelNew explains it."""
    with pytest.raises(RuntimeError) as caught:
        operator.forward(x, x, x)
    return operator.explain(caught.value)


def test_compile_error_reaches_the_caller_whole(
    operator: Operator, current: dict[str, Problem], tmp_path: Path
) -> None:
    sources = tiny_problem.copy_sources(tmp_path / "sources")
    source = sources / "tiny.cpp"
    source.write_text(source.read_text().replace("return HEAD_DIM;", "return nowhere;"))
    current["problem"] = tiny_problem.problem(tiny_problem.variant(source=source))
    for _ in range(2):
        error = call(operator, tensor(72))
        assert isinstance(error, CompileError)
        assert "nowhere" in error.output and "return nowhere;" in error.excerpt
    source.write_text(source.read_text().replace("return nowhere;", "return HEAD_DIM;"))
    x = tensor(72)
    assert operator.forward(x, x, x).unique().tolist() == [72]


def test_long_words_are_cut_for_cpp_and_whole_for_python(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "ä" * 5000

    def fail(*args: Any) -> None:
        raise ToolchainError(words, "none")

    monkeypatch.setattr(operator.resolver, "_library", fail)
    error = call(operator, tensor(88))
    assert isinstance(error, ToolchainError) and error.missing == words


def test_no_variant_is_a_value_error(operator: Operator) -> None:
    error = call(operator, tensor(8, dtype=torch.float64))
    assert isinstance(error, ValueError) and "dtype=float64" in str(error)


def _of_two() -> Problem:
    """Fills with head_dim; with 99, and is not chosen; serves nothing."""
    return tiny_problem.problem(
        tiny_problem.variant(),
        tiny_problem.variant(name="other", template_arguments=lambda request: ("float", "99"), chosen=False),
        tiny_problem.variant(name="nothing", serves=lambda request: False),
    )


def _value(operator: Operator, head_dim: int) -> float:
    x = tensor(head_dim)
    (value,) = operator.forward(x, x, x).unique().tolist()
    return value


def test_a_variant_can_be_used_by_name_before_and_after_the_first_call(
    operator: Operator, current: dict[str, Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_module, "_operators", [operator])  # others here are of other problems
    current["problem"] = _of_two()
    before = Request("cpu", device.cpu_arch(), "float32", 201, 1)
    operator.use(before, "other")
    assert _value(operator, 201) == 99, "asked for before the binding asked"
    assert _value(operator, 202) == 202, "of one specialisation, not of all"
    after = Request("cpu", device.cpu_arch(), "float32", 202, 1)
    for _ in range(2):
        use_variant("tiny", after, "other")
        assert _value(operator, 202) == 99
        use_variant("tiny", after, "fill")
        assert _value(operator, 202) == 202
    use_variant("tiny", after, "other")
    use_variant("tiny", after, "")
    assert _value(operator, 202) == 202, "the chosen one again"


def test_switching_variants_again_loads_nothing(
    operator: Operator, current: dict[str, Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    current["problem"] = _of_two()
    request = Request("cpu", device.cpu_arch(), "float32", 203, 1)
    assert _value(operator, 203) == 203
    operator.use(request, "other")
    operator.use(request, "fill")
    monkeypatch.setattr(operator.resolver, "_library", lambda *numbers: pytest.fail("loaded before"))
    operator.use(request, "other")
    assert _value(operator, 203) == 99


def test_a_variant_that_cannot_serve_is_refused_and_changes_nothing(
    operator: Operator, current: dict[str, Problem]
) -> None:
    current["problem"] = _of_two()
    request = Request("cpu", device.cpu_arch(), "float32", 204, 1)
    assert _value(operator, 204) == 204
    with pytest.raises(
        ValueError, match="variant 'nothing' does not serve .*; variants that do: fill, other"
    ):
        operator.use(request, "nothing")
    with pytest.raises(ValueError, match=r"no variant 'dance'; it has: fill \(cpu\), other \(cpu\)"):
        operator.use(request, "dance")
    with pytest.raises(ValueError, match="no operator 'nobody'; there are: .*tiny"):
        use_variant("nobody", request, "fill")
    assert _value(operator, 204) == 204


def test_the_environment_names_a_variant(
    operator: Operator, current: dict[str, Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    current["problem"] = _of_two()
    monkeypatch.setenv("KERNELS_VARIANT", "other")
    assert _value(operator, 205) == 99
    request = Request("cpu", device.cpu_arch(), "float32", 205, 1)
    operator.use(request, "fill")
    assert _value(operator, 205) == 205, "what is asked for comes before the environment"
    operator.use(request, "other")
    operator.use(request, "")
    assert _value(operator, 205) == 205, "what the problem chooses"
    monkeypatch.setenv("KERNELS_VARIANT", "dance")
    x = tensor(206)
    with pytest.raises(RuntimeError, match="no variant 'dance'") as caught:
        operator.forward(x, x, x)
    assert isinstance(operator.explain(caught.value), ValueError)
    monkeypatch.delenv("KERNELS_VARIANT")
    assert _value(operator, 206) == 206, "a refusal is not remembered"


def test_a_note_on_one_variant_is_no_answer_for_another(
    operator: Operator, current: dict[str, Problem]
) -> None:
    current["problem"] = _of_two()
    plain = operator.resolver._question("cpu", "AVX2", "float32", 8, 1, "")
    assert plain == ("tiny", "cpu", "AVX2", "float32", "8", "1")
    assert operator.resolver._question("cpu", "AVX2", "float32", 8, 1, "other") != plain


def test_interrupt_passes_through_cpp(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(operator.resolver, "_library", interrupted)
    assert isinstance(call(operator, tensor(104)), KeyboardInterrupt)


def test_explain_belongs_to_its_thread_and_its_error(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise ToolchainError("no compiler", "get one")

    monkeypatch.setattr(operator.resolver, "_library", fail)
    with pytest.raises(RuntimeError) as caught:
        operator.forward(tensor(120), tensor(120), tensor(120))
    other: list[BaseException] = []
    thread = threading.Thread(target=lambda: other.append(operator.explain(caught.value)))
    thread.start()
    thread.join()
    assert other == [caught.value]
    unrelated = RuntimeError("something else")
    with pytest.raises(RuntimeError):
        operator.forward(tensor(120), tensor(120), tensor(120))
    assert operator.explain(unrelated) is unrelated
    assert operator.explain(caught.value) is caught.value  # asked once, forgotten


def test_what_is_behind_a_lack_of_memory(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*args: Any) -> None:
        raise torch.OutOfMemoryError(f"CUDA out of memory for {args}")

    monkeypatch.setattr(operator, "_fake", fake)
    x = torch.zeros(1, 1, 1, 1).expand(2**31, 2**16, 1, 1)
    with pytest.raises(RuntimeError, match="inside torch") as caught:
        operator.forward(x, x, x)
    behind = operator.explain(caught.value, "q", "k")
    assert type(behind) is torch.OutOfMemoryError and "('q', 'k')" in str(behind)
    monkeypatch.setattr(operator, "_fake", lambda *args: None)  # there is memory again
    assert operator.explain(caught.value, "q", "k") is caught.value
    behind = operator.explain(RuntimeError("tiny: the kernel failed: out of memory"))
    assert type(behind) is torch.OutOfMemoryError and "tiny" in str(behind)


# As in the binding, an entry stays where it is.
ENTRIES: list[Any] = []


def resolve(
    operator: Operator, device_type: int, *, fast: bool = False, is_long: bool = False
) -> tuple[int, str]:
    """Ask the resolver as the binding does."""
    request = ctypes.create_string_buffer(
        resolver_module._REQUEST.pack(device_type, 0, 0, 8, 1, fast, is_long)
    )
    entry = ctypes.create_string_buffer(resolver_module._ENTRY.size)
    ENTRIES.append(entry)
    code = operator.resolver.resolve(ctypes.addressof(request), ctypes.addressof(entry))
    launch, error_string, error = resolver_module._ENTRY.unpack(entry.raw)
    assert (launch != 0) == (error_string != 0) == (code == 0)
    return code, error.partition(b"\0")[0].decode()


class Library:
    """A loaded CUDA kernel library whose preparation fails."""

    kernel_launch = staticmethod(lambda: 0)

    class _ErrorString:
        restype: Any = None

        def __call__(self, code: int) -> bytes:
            return b"no kernel image is available"

    kernel_error_string = _ErrorString()

    @staticmethod
    def kernel_prepare() -> int:
        return 209


@pytest.fixture
def pretend_cuda(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A CUDA device, as far as the resolver looks; returns the devices that were made current."""
    current: list[int] = []

    class Current:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *args: Any) -> None:
            pass

    monkeypatch.setattr(operator.resolver, "_prepared", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", Current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return current


def test_first_call_inside_capture_is_refused(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, pretend_cuda: list[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(operator.resolver, "_answer", lambda *args: pytest.fail("loaded inside capture"))
    code, words = resolve(operator, 1)
    assert code == 1 and "call it once before" in words
    assert isinstance(operator.explain(RuntimeError(words)), CaptureError)


def test_first_call_of_the_fast_form_inside_capture_says_so(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, pretend_cuda: list[int]
) -> None:
    """The other form may have been called before."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(operator.resolver, "_has_fast_form", lambda *asked: True)
    code, words = resolve(operator, 1, fast=True)
    assert code == 1 and "first called at this float32 matmul precision inside CUDA graph capture" in words


def test_long_calls_inside_capture_need_one_before_only_where_their_library_is_another(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, pretend_cuda: list[int]
) -> None:
    monkeypatch.setattr(operator.resolver, "_answer", lambda *args: Ready())
    assert resolve(operator, 1)[0] == 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(operator.resolver, "_answer", lambda *args: pytest.fail("loaded inside capture"))
    assert resolve(operator, 1, is_long=True)[0] == 0
    monkeypatch.setattr(operator.resolver, "_has_long_form", lambda *asked: True)
    code, words = resolve(operator, 1, is_long=True)
    assert code == 1 and "first called with sequences as long as these inside CUDA graph capture" in words


class Ready(Library):
    """A loaded CUDA kernel library that is prepared."""

    kernel_launch = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    kernel_error_string = kernel_launch

    @staticmethod
    def kernel_prepare() -> int:
        return 0


@pytest.fixture
def asked(
    operator: Operator,
    current: dict[str, Problem],
    monkeypatch: pytest.MonkeyPatch,
    pretend_cuda: list[int],
) -> list[tuple[str, tuple[str, ...]]]:
    """The variants, and the last words of the questions, that a resolver asked on a CUDA device asks for."""
    current["problem"] = tiny_problem.problem(
        tiny_problem.variant("cuda", name="less", fast=True), tiny_problem.variant("cuda", name="exact")
    )
    found = []

    def answer(question: tuple[str, ...], spec: Callable[[], Any], *, binding: str = "") -> Any:
        if binding:
            return Resolver._answer(operator.resolver, question, spec, binding=binding)
        found.append((spec().variant, question[6:]))
        return Ready()

    monkeypatch.setattr(operator.resolver, "_answer", answer)
    monkeypatch.setattr(operator.resolver, "_resolved", {})
    monkeypatch.setattr(operator.resolver, "_has_fast_form", lambda *asked: asked == ("9.0", "float32", 8))
    monkeypatch.setattr(operator, "asks", False)
    return found


def test_the_resolver_asks_for_the_fast_form_where_there_is_one(
    operator: Operator, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fast in (False, True, False):
        assert resolve(operator, 1, fast=fast)[0] == 0
    assert asked == [("exact", ()), ("less", ("fast",))], "the third was there"
    monkeypatch.setattr(operator.resolver, "_has_fast_form", lambda *asked: False)
    assert resolve(operator, 1, fast=True)[0] == 0
    assert asked[2:] == []
    monkeypatch.setenv("KERNELS_VARIANT", "exact")
    monkeypatch.setattr(operator.resolver, "_has_fast_form", lambda *asked: True)
    assert resolve(operator, 1, fast=True)[0] == 0
    assert asked[2:] == [("exact", ("variant exact",))]


def test_the_resolver_asks_for_the_long_form_where_there_is_one(
    operator: Operator, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator.resolver, "_has_long_form", lambda *asked: asked == ("9.0", "float32", 8))
    for is_long in (False, True, False):
        assert resolve(operator, 1, is_long=is_long)[0] == 0
    assert asked == [("exact", ()), ("exact", ("long",))], "the third was there"
    request = Request("cuda", "sm_90a", "float32", 8, long=True)
    operator.use(request, "less")
    assert asked[2:] == [("less", ("variant less", "long"))], "what is short stays as it is"
    operator.use(request, "")


@pytest.mark.parametrize("fast", [False, True])
def test_meeting_a_request_with_a_fast_form_makes_callers_ask(
    operator: Operator, asked: list[Any], monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    monkeypatch.setattr(operator_module, "_operators", [operator])
    again = make_operator(tiny_problem.problem())  # as after a reload: it shares what the binding knows
    assert resolve(operator, 1, fast=fast)[0] == 0
    assert operator.asks and again.asks
    late = make_operator(tiny_problem.problem())
    late.load()
    assert late.asks
    operator.loaded = False  # the binding asks the last one that was loaded
    operator.load()


def test_requests_without_a_fast_form_make_nobody_ask(
    operator: Operator, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator.resolver, "_has_fast_form", lambda *asked: False)
    assert resolve(operator, 1)[0] == 0
    x = tensor(8)
    operator.forward(x, x, x)
    assert not operator.asks


def test_both_forms_of_a_specialisation_are_used_by_name(
    operator: Operator, current: dict[str, Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    current["problem"] = _of_two()
    request = Request("cpu", device.cpu_arch(), "float32", 207, 1)
    x = tensor(207)

    def values() -> list[float]:
        return [f(x, x, x)[0, 0, 0, 0].item() for f in (operator.forward, operator.fast_forward)]

    assert values() == [207, 207], "no fast form on the CPU"
    operator.use(request, "other")
    assert values() == [99, 99]
    operator.use(request, "")
    assert values() == [207, 207]


def test_the_setting_on_a_torch_without_the_private_getter(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C, "_get_fp32_precision_getter")
    precision = operator_module._fp32_precision_getter()
    matmul = SimpleNamespace(fp32_precision="tf32")
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    assert precision("cuda", "matmul") == "tf32"
    del matmul.fp32_precision
    assert precision("cuda", "matmul") == "none"


def test_device_that_cannot_run_the_kernel_is_named(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, pretend_cuda: list[int]
) -> None:
    monkeypatch.setattr(operator.resolver, "_answer", lambda *args: Library())
    code, words = resolve(operator, 1)
    assert code == 1 and pretend_cuda == [0]
    error = operator.explain(RuntimeError(words))
    assert isinstance(error, LaunchError)
    assert "tiny cannot be loaded on cuda:0 (sm_90a): no kernel image is available (CUDA error 209)" in str(
        error
    )


@pytest.fixture
def on_gpu(operator: Operator, current: dict[str, Problem]) -> Operator:
    current["problem"] = tiny_problem.problem(
        tiny_problem.variant("cuda", source=tiny_problem.HERE / "tiny.cu")
    )
    return operator


def gpu_tensor(head_dim: int, index: int = 0) -> torch.Tensor:
    return torch.zeros(1, 1, 1, head_dim, device=f"cuda:{index}")


@pytest.mark.gpu
def test_gpu_call_and_capture(on_gpu: Operator) -> None:
    """A first call inside capture is refused and spoils nothing; after one outside, capture works."""
    x = gpu_tensor(8)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError) as caught, torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")  # torch warns of an empty graph
        on_gpu.forward(x, x, x)
    assert isinstance(on_gpu.explain(caught.value), CaptureError)
    assert on_gpu.forward(x, x, x).unique().tolist() == [8]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = on_gpu.forward(x, x, x)
    out.zero_()
    graph.replay()
    assert out.unique().tolist() == [8]


@pytest.mark.gpu
def test_gpu_library_is_prepared_on_every_device(on_gpu: Operator) -> None:
    before = load.stats()["builds"]
    for index in range(torch.cuda.device_count()):
        x = gpu_tensor(16, index)
        assert on_gpu.forward(x, x, x).unique().tolist() == [16]
        assert torch.cuda.current_device() == 0
    archs = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    assert load.stats()["builds"] - before <= len(archs)


@pytest.mark.gpu
@pytest.mark.slow
def test_gpu_early_build_leaves_cuda_alone(
    cache_dir: Path, python: Callable[..., subprocess.CompletedProcess]
) -> None:
    """The early build finds the GPU's architecture, and a child forked after it can still use the GPU."""
    code = """
import os, threading, torch, tiny_problem
from test_operator import make_operator
from kernels.jit import cache
variant = tiny_problem.variant("cuda", source=tiny_problem.HERE / "tiny.cu")
make_operator(tiny_problem.problem(variant)).prebuild()
for thread in threading.enumerate():
    if thread.name == "prebuild tiny":
        thread.join()
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    torch.zeros(1, device="cuda")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
from kernels.device import cuda_arch
assert any(f"tiny-fill-{cuda_arch(0)}" in entry.name for entry in cache.entries())
"""
    python(code, KERNELS_PREBUILD="1")


def test_failed_load_can_be_tried_again(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Operator(
        "absent",
        lambda: tiny_problem.problem(source=Path("nowhere.cpp")),
        fake=lambda q: q,
        setup_context=lambda ctx: None,
        backward=lambda ctx: None,
    )
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"nowhere\.cpp: No such file"):
            other.load()
        assert not other.loaded


# -- early builds -----------------------------------------------------------------------------------


def early_builds() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prebuild tiny"]


@pytest.fixture
def unloaded(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setenv("KERNELS_PREBUILD", "1")
    monkeypatch.setattr(device, "peek_cuda_capability", lambda: None)
    operator = make_operator(tiny_problem.problem())
    # Another test's binding is loaded here, and building it once more takes another process.
    monkeypatch.setattr(operator.resolver, "_binding_spec", lambda: tiny_problem.cpu_spec(136))
    return operator


def wait_for_early_build() -> None:
    for thread in early_builds():
        thread.join(120)
        assert not thread.is_alive()


def test_prebuild_builds_the_default_in_the_background(unloaded: Operator) -> None:
    unloaded.prebuild()
    wait_for_early_build()
    problem = unloaded.resolver._problem()
    request = problem.default_request("cpu", device.cpu_arch())
    assert load.obtain(build_spec(problem, request)).cached
    assert load.obtain(unloaded.resolver._binding_spec()).cached
    assert not unloaded.loaded and not torch.cuda.is_initialized()


def test_prebuild_starts_nothing_where_all_is_there(
    unloaded: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "noted", lambda question: {"digest": "d"})
    unloaded.prebuild()
    assert early_builds() == []


def build_spec(problem: Problem, request: Request) -> Any:
    from kernels.jit.spec import kernel_spec

    return kernel_spec(problem, request)


def test_prebuild_is_turned_off(unloaded: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_PREBUILD", "0")
    monkeypatch.setattr(unloaded.resolver, "_prebuild", lambda: pytest.fail("started"))
    unloaded.prebuild()
    assert early_builds() == []


def test_prebuild_asks_for_the_gpu_that_is_there(unloaded: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    problem = tiny_problem.problem()
    monkeypatch.setattr(device, "peek_cuda_capability", lambda: "8.0")
    monkeypatch.setattr(resolver_module, "_torch_has_cuda", lambda: True)
    object.__setattr__(problem, "default_request", lambda *args: asked.append(args))
    monkeypatch.setattr(unloaded.resolver, "_problem", lambda: problem)
    unloaded.prebuild()
    wait_for_early_build()
    assert asked == [("cuda", "sm_80")]
    assert not torch.cuda.is_initialized()


def test_prebuild_raises_nothing(
    unloaded: Operator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="kernels.jit.resolver")

    def missing() -> None:
        raise ToolchainError("no C++ compiler found", "get one")

    monkeypatch.setattr(build, "find_cxx", missing)
    unloaded.prebuild()
    wait_for_early_build()
    assert "early build of tiny failed" in caplog.text and "no C++ compiler" in caplog.text


# -- warm starts --------------------------------------------------------------------------------------

HEAVY = (
    "kernels.device",
    "kernels.jit.load",
    "kernels.jit.build",
    "kernels.jit.spec",
    "kernels.problem",
    "kernels.toolchain",
    "rich",
)
WARM = f"""
import sys, torch
before = set(sys.modules)
import test_warm_start
answer = test_warm_start.answer()
print(answer, sorted(set(sys.modules) & set({HEAVY!r}) - before), test_warm_start.warm.counts())
"""
WARM_START = """
from pathlib import Path
import torch
from kernels.jit import warm
from kernels.jit.operator import Operator

def problem():
    import tiny_problem
    sources = Path(__file__).parent
    variant = tiny_problem.variant(source=sources / "tiny.cpp")
    return tiny_problem.problem(variant, source=sources / "tiny_binding.cpp")

def answer():
    rules = dict(fake=lambda q, k, v: q, setup_context=lambda *a: None, backward=lambda *a: a)
    operator = Operator("tiny", problem, **rules)
    operator.load()
    x = torch.zeros(1, 1, 1, 8)
    return operator.forward(x, x, x)[0, 0, 0].tolist()[0]
"""


@pytest.mark.slow
def test_warm_start_takes_the_short_way_and_notices_a_change(
    cache_dir: Path, tmp_path: Path, python: Callable[..., subprocess.CompletedProcess]
) -> None:
    """Warm, nothing of the long way is imported; a changed header, module or library takes it again."""
    import os

    folder = tiny_problem.copy_sources(tmp_path / "package")
    module = folder / "test_warm_start.py"
    module.write_text(WARM_START)
    for file in folder.iterdir():  # a file as new as the build is not noted: it may still be changing
        os.utime(file, (1e9, 1e9))
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + WARM

    def start() -> str:
        return python(code).stdout.strip()

    assert "kernels.jit.build" in start()
    assert start() == "8.0 [] {'builds': 0, 'hits': 2}"

    header = folder / "tiny_value.h"
    header.write_text(header.read_text().replace("VALUE = 0", "VALUE = 5"))
    os.utime(header, (1.1e9, 1.1e9))
    assert start().startswith("5.0 ['kernels.device', 'kernels.jit.build'")

    module.write_text(WARM_START + "# changed\n")
    os.utime(module, (1.1e9, 1.1e9))
    assert "kernels.jit.build" in start()

    for library in (cache_dir / "entries").glob("tiny-fill-*/library.so"):
        library.write_bytes(library.read_bytes()[:-1])
    answer = start()
    assert answer.startswith("5.0") and "'builds': 1" in answer
    assert start() == "5.0 [] {'builds': 0, 'hits': 2}"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"asked": 1}', b"\xff"])
def test_damaged_note_is_no_answer(cache_dir: Path, tmp_path: Path, content: bytes) -> None:
    import hashlib
    import time

    library = tmp_path / "library.so"
    library.write_bytes(b"library")
    answer = {
        "digest": "d",
        "library": str(library),
        "bytes": 7,
        "sha256": hashlib.sha256(b"library").hexdigest(),
    }
    warm.write(("tiny", "now"), {("tiny", "now"): answer}, [], time.time_ns(), [])
    assert warm.find(("tiny", "now")) == ("d", str(library))
    (note,) = (cache_dir / "notes").iterdir()
    note.write_bytes(content)
    assert warm.find(("tiny", "now")) is None


def test_note_of_a_file_that_just_changed_is_not_written(cache_dir: Path, tmp_path: Path) -> None:
    import time

    file = tmp_path / "source.cpp"
    file.write_text("int x;")
    answer = {"digest": "d", "library": str(file), "bytes": 6, "sha256": "0"}
    answers = {("tiny", "now"): answer}
    warm.write(("tiny", "now"), answers, [str(file)], time.time_ns(), [])
    assert not (cache_dir / "notes").exists()
    warm.write(("tiny", "now"), answers, [str(file)], time.time_ns() + 10**9, [])
    assert len(list((cache_dir / "notes").iterdir())) == 1
    assert warm.find(("tiny", "now")) is None  # its library is not the one noted


def test_note_depends_on_what_finds_the_compiler(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ("tiny", "binding")
    before = warm._note(question)
    for name in ("CUDA_HOME", "CXX", "PATH"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "/elsewhere")
            assert warm._note(question) != before
    assert warm._note(question) == before
    assert warm._note(("tiny", "other")) != before
