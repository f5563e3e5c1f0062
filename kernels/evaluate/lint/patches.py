"""Rules on what a file replaces or switches for the whole process: clocks, checks, precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernels.evaluate.lint.names import TORCH_NAMESPACES
from kernels.evaluate.lint.walk import Place, Seen, written

__all__ = ["COPYING", "patches"]

# A name stands for itself and for everything below it.
_CLOCKS = (
    "datetime",
    "time",
    "timeit",
    "torch.Event",
    "torch.Stream",
    "torch._C._cuda_synchronize",
    "torch._C._CudaEventBase",
    "torch._C._CudaStreamBase",
    "torch.accelerator.synchronize",
    "torch.cpu.synchronize",
    "torch.cuda.CUDAGraph",
    "torch.cuda.Event",
    "torch.cuda.Stream",
    "torch.cuda.current_stream",
    "torch.cuda.default_stream",
    "torch.cuda.graphs",
    "torch.cuda.streams",
    "torch.cuda.synchronize",
    "torch.profiler",
    "torch.autograd.profiler",
    "torch.utils.benchmark",
)
_CHECKS = (
    "builtins",
    "ctypes",
    "io",
    "json",
    "math",
    "mmap",
    "os",
    "pickle",
    "select",
    "socket",
    "struct",
    "threading",
    "torch.allclose",
    "torch.equal",
    "torch.isclose",
    "torch.manual_seed",
    "torch.random",
    "torch.testing",
)
# Methods of Tensor that a comparison or a snapshot goes through.
_TENSOR_METHODS = frozenset(
    "abs allclose clone contiguous copy_ cpu data_ptr detach double eq equal fill_ float isclose isfinite"
    " isnan item max ne numpy storage sub to tolist untyped_storage zero_".split()
)
# Operators that every copy and comparison of an output goes through.
COPYING = frozenset("_to_copy clone contiguous copy_ detach equal resolve_conj resolve_neg set_ view".split())
_OPEN_TO_ALL = ("torch._dynamo.config", "torch._inductor.config", "torch.backends", "torch.jit.")
_SETATTR = ("object.__setattr__", "setattr", "type.__setattr__", "types.ModuleType.__setattr__")


def patches(node: ast.AST, place: Place) -> Iterator[Seen]:
    """What ``node`` replaces or switches outside the file it stands in."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in (one for each in targets for one in _flat(each)):
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                yield from _replaced(node, place.scopes.dotted(target), node.value, place)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                yield from _replaced(node, place.scopes.dotted(target), None, place)
    elif isinstance(node, ast.Call):
        yield from _call(node, place)


def _flat(target: ast.AST) -> Iterator[ast.AST]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for one in target.elts:
            yield from _flat(one)
    else:
        yield target


def _call(node: ast.Call, place: Place) -> Iterator[Seen]:
    scopes, arguments = place.scopes, node.args
    called = scopes.dotted(node.func) or ""
    if called in _SETATTR and len(arguments) == 3:
        yield from _set(node, arguments[0], arguments[1], arguments[2], place)
    elif called == "delattr" and len(arguments) == 2:
        yield from _set(node, arguments[0], arguments[1], None, place)
    elif called.endswith(".__setattr__") and len(arguments) == 2:
        owner = called.removesuffix(".__setattr__")
        yield from _replaced(node, f"{owner}.{scopes.text(arguments[0]) or '*'}", arguments[1], place)
    elif called.endswith(".__dict__.update"):
        owner = called.removesuffix(".__dict__.update")
        for keyword in node.keywords:
            yield from _replaced(node, f"{owner}.{keyword.arg or '*'}", keyword.value, place)
        if arguments:
            yield from _replaced(node, f"{owner}.*", None, place)
    elif called in ("mock.patch", "unittest.mock.patch") and arguments:
        yield from _replaced(node, scopes.text(arguments[0]), None, place)
    elif called in ("mock.patch.object", "unittest.mock.patch.object") and len(arguments) >= 2:
        yield from _set(node, arguments[0], arguments[1], None, place)
    elif called.startswith("torch.library."):
        yield from _registered(node, called, place)
    else:
        yield from _switch_call(node, called, place)


def _registered(node: ast.Call, called: str, place: Place) -> Iterator[Seen]:
    """``Library("aten", "IMPL")``, its ``impl("clone", ...)``, and both forms of ``torch.library.impl``."""
    texts = [place.scopes.text(one) or "" for one in node.args[:2]] + ["", ""]
    library = "torch.library.Library"
    if called == library and texts[0] in TORCH_NAMESPACES:
        yield Seen("patched-library", node, f"registers in torch's own namespace {texts[0]}")
        return
    name = texts[0]
    if called == "torch.library.impl" and not name and node.args:
        called, name = f"{place.scopes.dotted(node.args[0])}.impl", texts[1]
    if called.startswith(f"{library}.") and called.endswith(".impl"):
        name = f"{called.removeprefix(f'{library}.').removesuffix('.impl')}::{name.rpartition('::')[2]}"
    elif called != "torch.library.impl":
        return
    space, _, operator = name.partition("::")
    if space in TORCH_NAMESPACES:
        rule = "patched-check" if operator.partition(".")[0] in COPYING else "patched-library"
        yield Seen(rule, node, f"registers a kernel for {name}")


def _set(node: ast.AST, owner: ast.AST, name: ast.AST, value: ast.AST | None, place: Place) -> Iterator[Seen]:
    dotted = place.scopes.dotted(owner)
    if dotted:
        yield from _replaced(node, f"{dotted}.{place.scopes.text(name) or '*'}", value, place)


def _replaced(node: ast.AST, name: str | None, value: ast.AST | None, place: Place) -> Iterator[Seen]:
    """``name`` is what is replaced; ``*`` in it stands for what is computed at run time."""
    if not name:
        return
    name = name.replace(".__dict__", "")
    if _under(name, _CLOCKS):
        yield Seen("patched-clock", node, f"replaces {name}")
    elif _under(name, _CHECKS) or _tensor_method(name):
        yield Seen("patched-check", node, f"replaces {name}")
    elif name.startswith("torch.backends."):
        yield from _backend(node, name, value, place)
    elif name.startswith("torch.") and not name.startswith(_OPEN_TO_ALL) and "ops." not in name:
        yield Seen("patched-library", node, f"assigns {name}")


def _under(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _tensor_method(name: str) -> bool:
    owner, _, method = name.rpartition(".")
    return owner in ("torch.Tensor", "torch._tensor.Tensor", "torch._C.TensorBase") and (
        method in _TENSOR_METHODS or (method.startswith("__") and method.endswith("__")) or method == "*"
    )


# -- switches --------------------------------------------------------------------------------


def _backend(node: ast.AST, name: str, value: ast.AST | None, place: Place) -> Iterator[Seen]:
    last = name.rpartition(".")[2]
    constant = value.value if isinstance(value, ast.Constant) else ...
    if name == "torch.backends.cudnn.allow_tf32":
        if constant is not False:  # True is torch's default
            yield Seen("global-setting", node, f"sets {name}")
    elif last in ("allow_tf32", "allow_fp16_accumulation"):
        if constant is not False:
            yield Seen("precision-switch", node, f"sets {name}")
    elif last == "fp32_precision":
        if constant not in ("ieee", "none"):
            yield Seen("precision-switch", node, f"sets {name} to {written(value)}")
    elif last == "deterministic":
        if constant is not True:
            yield Seen("determinism-switch", node, f"sets {name}")
    else:
        yield Seen("global-setting", node, f"sets {name}")


def _switch_call(node: ast.Call, called: str, place: Place) -> Iterator[Seen]:
    first = node.args[0] if node.args else next((one.value for one in node.keywords), None)
    constant = first.value if isinstance(first, ast.Constant) else place.scopes.text(first)
    if called == "torch.set_float32_matmul_precision":
        if constant != "highest":
            yield Seen("precision-switch", node, f"calls {called}({written(first)})")
    elif called in ("torch.use_deterministic_algorithms", "torch.set_deterministic_debug_mode"):
        if constant in (False, 0, "default"):
            yield Seen("determinism-switch", node, f"calls {called}({written(first)})")
    elif called == "torch.backends.cudnn.flags":
        yield from _flags(node)
    elif called in (
        "torch.set_default_dtype",
        "torch.set_default_device",
        "torch.set_num_threads",
        "torch.set_flush_denormal",
    ):
        yield Seen("global-setting", node, f"calls {called}({written(first)})")


def _flags(node: ast.Call) -> Iterator[Seen]:
    """A context that sets switches and takes them back: worth a note, no more."""
    for keyword in node.keywords:
        on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        if keyword.arg == "allow_tf32" and on:
            yield Seen("lower-precision", node, "runs cuDNN with TF32 inside a context")
