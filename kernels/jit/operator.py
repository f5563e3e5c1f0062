"""Joins a binding library to torch: loads it and adds the Python rules.

The binding registers its operators in C++ as it is loaded, and asks the resolver
(:mod:`kernels.jit.resolver`), a C callback, for each specialisation it has not seen.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernels.jit import direct_calls
from kernels.jit.resolver import CALLBACK, Resolver

if TYPE_CHECKING:
    import torch

    from kernels.errors import LaunchError
    from kernels.problem import Problem, Request

__all__ = ["NAMESPACE", "Operator", "gradient_is_transformed", "use_variant"]

NAMESPACE = "kernelwright"

# A binding holds its resolver's address as long as the process lives.
_kept_alive: list[Any] = []
# Operators whose Python rules torch has; torch refuses them a second time.
_with_rules: set[str] = set()


def transforms_are_on() -> bool:
    """Whether this thread is under a transform of ``torch.func``, such as ``vmap`` or ``grad``."""
    import torch

    on: bool = torch._C._are_functorch_transforms_active()
    return on


# A constant for torch.compile: its guards hold the transforms.
transforms_are_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


def gradient_is_transformed(*tensors: torch.Tensor) -> bool:
    """Whether transforms are on, under which a gradient is asked for one of ``tensors``.

    An operator's autograd rule does not serve there. ``vmap`` hides who asks outside it; a graph
    that is traced, which level of transforms a tensor is of: there each transform counts.
    """
    if not transforms_are_on():
        return False
    from torch.compiler import is_compiling

    return is_compiling() or any(_innermost(tensor).requires_grad for tensor in tensors)


def _innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside those that ``vmap`` makes of it."""
    from torch._C import _functorch

    while _functorch.is_batchedtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


class Operator:
    """The operators ``kernelwright::<name>`` and ``<name>_forward``, and their fast twins.

    ``problem`` returns the problem, called when first needed. ``fake`` is the meta
    rule of all four; ``setup_context`` and ``backward`` are the autograd rule of
    ``<name>`` and ``<name>_fast`` (see ``torch.library``). What is called is set by
    :meth:`load`.

    ``<name>_fast`` and ``<name>_fast_forward`` say that a less accurate kernel may
    serve; :meth:`fast_allowed`, whether torch's settings allow that. A caller asks, and
    calls the one or the other: so a compiled graph holds what its guards stand for.
    ``has_fast_form(capability, dtype, head_dim)`` says for which CUDA requests there is
    such a kernel; for all others the twins run the same one. ``has_long_form``, asked alike, says
    for which requests of :func:`kernels.problem.is_long` calls there is another library.

    ``asks`` is whether a caller of the next two must ask: False while no request with a fast form
    was met and no graph was traced, so that calls which have none need not pay for the question.

    ``direct`` and ``fast_direct`` are ``<name>_forward`` and its twin without torch's dispatcher,
    which costs as much as all the rest: for plain tensors and kernels that were called before, while
    no gradient is asked for and no mode, transform or profiler is on. Otherwise they return None,
    as they do at their own first call.
    """

    forward: Any
    forward_now: Any  # the same without OpOverload's Python frame; torch.compile does not trace it
    differentiable: Any
    fast_forward: Any
    fast_forward_now: Any
    fast_differentiable: Any
    direct: Callable[..., Any]
    fast_direct: Callable[..., Any]
    fp32_precision: Callable[[str, str], str]  # what fast_allowed asks; torch.compile does not trace it

    def __init__(
        self,
        name: str,
        problem: Callable[[], Problem],
        *,
        fake: Callable[..., Any],
        setup_context: Callable[..., Any],
        backward: Callable[..., Any],
        has_fast_form: Callable[[str, str, int], bool] = lambda capability, dtype, head_dim: False,
        has_long_form: Callable[[str, str, int], bool] = lambda capability, dtype, head_dim: False,
    ) -> None:
        self.name = name
        self.loaded = False
        self.asks = False
        self._problem = problem
        self._fake = fake
        self._setup_context = setup_context
        self._backward = backward
        self.resolver = Resolver(
            name,
            problem,
            has_fast_form=has_fast_form,
            has_long_form=has_long_form,
            met_fast_form=self._must_ask,
            met_cuda=self._met_cuda,
        )
        self._binding: ctypes.CDLL | None = None
        self._cuda_index: int | None = None  # a device that was asked for
        self._guard = threading.Lock()
        _operators.append(self)

    def load(self) -> None:
        """Build or load the binding and register the Python rules; the first call does, the others return.

        Raises what :func:`kernels.jit.load.load` raises, and :class:`LaunchError` where the binding
        registers no operator of this name.
        """
        with self._guard:
            if self.loaded:
                return
            import torch

            library = self.resolver.binding()
            operators = getattr(torch.ops, NAMESPACE)
            if not hasattr(operators, self.name):
                raise self._not_registered()
            callback = CALLBACK(self.resolver.resolve)
            _kept_alive.append(callback)
            library.binding_set_resolver.argtypes = [CALLBACK]
            library.binding_set_resolver.restype = None
            library.binding_set_resolver(callback)
            self._binding = library
            self.direct = self.fast_direct = self._connect
            fast = f"{self.name}_fast"
            if self.name not in _with_rules:
                rules = torch.library.Library(NAMESPACE, "FRAGMENT")
                _kept_alive.append(rules)  # torch drops the rules with it
                # What register_fake comes to for a rule that reads no data, at a tenth of its price.
                for name in (self.name, fast):
                    rules.impl(name, self._on_meta, "Meta")
                    rules.impl(f"{name}_forward", self._on_meta, "Meta")
                    self._register_autograd(rules, name)
                _with_rules.add(self.name)
            self.differentiable = getattr(operators, self.name).default
            self.forward = getattr(operators, f"{self.name}_forward").default
            self.forward_now = self.forward._op
            self.fast_differentiable = getattr(operators, fast).default
            self.fast_forward = getattr(operators, f"{fast}_forward").default
            self.fast_forward_now = self.fast_forward._op
            self.fp32_precision = _fp32_precision_getter()
            # Where a fast form is allowed from the start, no accurate one is built only to find that out.
            if self.fast_allowed() or any(each.asks for each in self._namesakes()):
                self._must_ask()
            self.loaded = True

    def _not_registered(self) -> LaunchError:
        from kernels.errors import LaunchError
        from kernels.jit.source import no_such_operator

        return LaunchError(no_such_operator(self._problem().binding, self.name, self.name))

    def _connect(self, *arguments: Any) -> None:
        """What ``direct`` is first: find the direct calls for those that follow.

        Not at the first call, which has waited long enough, but at the second.
        """
        with self._guard:
            assert self._binding is not None
            self.direct, self.fast_direct = direct_calls.connect(self._binding, self._cuda_index)

    def _register_autograd(self, rules: torch.library.Library, name: str) -> None:
        """Register the autograd rule, making it when a gradient is first asked for.

        ``torch.library.register_autograd`` makes the rule at once, which takes a
        quarter of what a warm start may.
        """
        import torch

        make = getattr(getattr(torch._library, "autograd", None), "make_autograd_impl", None)
        if make is None:  # not this torch's way
            qualified = f"{NAMESPACE}::{name}"
            torch.library.register_autograd(qualified, self._backward, setup_context=self._setup_context)
            return
        operator = getattr(getattr(torch.ops, NAMESPACE), name).default
        rule: Any = None

        def autograd(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal rule
            if rule is None:
                rule = make(operator, torch._library.autograd.Info(self._backward, self._setup_context))
            return rule(keyset, *args, **kwargs)

        rules.impl(name, autograd, "Autograd", with_keyset=True)

    # torch.compile must run this rather than trace it. The mark is what
    # torch.compiler.assume_constant_result sets; calling that would import the whole
    # compiler on every start.
    load._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def fast_allowed(self) -> bool:
        """Whether torch's settings allow float32 products of less than float32 accuracy on CUDA.

        They do after ``torch.set_float32_matmul_precision("high")`` or ``"medium")``, and where
        ``torch.backends.cuda.matmul.fp32_precision``, or ``torch.backends.fp32_precision`` in its
        place, is ``"tf32"``.
        """
        return self.fp32_precision("cuda", "matmul") == "tf32"

    # A constant for torch.compile: its guards hold the setting.
    fast_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _must_ask(self) -> None:
        for each in self._namesakes():
            each.asks = True

    def _namesakes(self) -> list[Operator]:
        """The operators called so, this one among them: a package that is loaded anew makes another."""
        return [each for each in _operators if each.name == self.name]

    def _on_meta(self, *args: Any) -> Any:
        """The meta rule; who uses it makes a graph, which must hold the one that the settings say."""
        self._must_ask()
        return self._fake(*args)

    def _met_cuda(self, index: int) -> None:
        if self._cuda_index is None:
            with self._guard:
                self._cuda_index = index
                self.direct = self.fast_direct = self._connect

    def prebuild(self) -> None:
        """Start building the binding and the default specialisation in the background.

        Returns at once, initialises no CUDA, raises nothing: what goes wrong is raised
        by the first call, which tries again. ``KERNELS_PREBUILD=0`` turns it off.
        """
        if "KERNELS_PREBUILD" in os.environ:  # else a warm start need not import how it is read
            from kernels.variables import value_of

            if value_of("KERNELS_PREBUILD", "0", "1") == "0":
                return
        if not self.loaded:
            self.resolver.prebuild()

    def use(self, request: Request, variant: str) -> None:
        """Have the variant called ``variant`` serve calls like ``request`` from now on, at every precision.

        ``""`` stands for the one that the problem chooses, whatever ``KERNELS_VARIANT`` names.
        What a CUDA graph holds stays as it is. For measuring: no other thread may call the
        operator meanwhile. Raises ``ValueError`` for a variant that does not serve
        ``request``, and what building and loading it raises.
        """
        self.resolver.use(request, variant)

    def explain(self, error: Exception, *arguments: Any) -> BaseException:
        """What is behind ``error``, which the operator raised for ``arguments``; else ``error`` itself.

        That is the exception this thread's resolver left behind, or torch's own where the output
        cannot be allocated: through its stable ABI torch tells no more than that something failed. A
        kernel's memory is asked for by the kernel: ``torch.OutOfMemoryError`` where there is none.
        """
        words = str(error)
        if all(part in words for part in _NO_OUTPUT):
            try:
                self._fake(*arguments)  # allocates the same from Python, on tensors with data
            except Exception as reason:
                return reason
        if _NO_MEMORY in words:
            import torch

            return torch.OutOfMemoryError(words)
        return self.resolver.explain(error)


_operators: list[Operator] = []

# In the words of kernels/bindings/tensor.h, and of attention.h with CUDA's for an error of memory.
_NO_OUTPUT = ("allocating [", " bytes, failed inside torch")
_NO_MEMORY = ": the kernel failed: out of memory"


def _fp32_precision_getter() -> Callable[[str, str], str]:
    """Torch's precision for float32, ``"ieee"`` or ``"tf32"``, called with a backend and an operation."""
    import torch

    def public(backend: str, operation: str) -> str:
        setting: str = getattr(getattr(getattr(torch.backends, backend), operation), "fp32_precision", "none")
        return setting

    # The public way takes several times as long, and torch.get_float32_matmul_precision raises for what
    # only fp32_precision can say.
    getter: Callable[[str, str], str] = getattr(torch._C, "_get_fp32_precision_getter", public)
    return getter


def use_variant(name: str, request: Request, variant: str) -> None:
    """:meth:`Operator.use` of the operator called ``name``. Raises ``ValueError`` where there is none."""
    found = [operator for operator in _operators if operator.name == name]
    if not found:
        raise ValueError(
            f"no operator {name!r}; there are: {', '.join(o.name for o in _operators) or 'none'}"
        )
    for operator in found:
        operator.use(request, variant)


def _after_fork_in_child() -> None:
    for operator in _operators:
        operator._guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
