"""Joins a binding library to torch: loads it, answers its questions, adds the Python rules.

The binding registers its operators in C++ as it is loaded, and asks the resolver, a
C callback into this module, for each specialisation it has not seen.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernels.jit import direct_calls, warm

if TYPE_CHECKING:
    import torch

    from kernels.jit.spec import KernelSpec
    from kernels.problem import Problem, Request

__all__ = ["NAMESPACE", "Operator", "use_variant"]

NAMESPACE = "kernelwright"
_log = logging.getLogger(__name__)

# The numbering of binding::Dtype in kernels/bindings/registry.h.
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")
_DEVICES = ("cpu", "cuda")
_ERROR_BYTES = 2048
_EXIT_WAIT_S = 120.0


# struct KernelRequest and struct KernelEntry of kernels/bindings/registry.h. As struct
# formats: a ctypes.Structure takes a hundredth of what a warm start may to define.
_REQUEST = struct.Struct("7i")  # device type, device index, dtype, head_dim, group size, fast, long
_ENTRY = struct.Struct(f"PP{_ERROR_BYTES}s")  # launch, error_string, error
_FUNCTIONS = struct.Struct("PP")  # its first two
_RESOLVER = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)

# (device type, device index, dtype, head_dim, group size, fast, long) as the binding asks for it
_Numbers = tuple[int, ...]
# (device, dtype, head_dim, group size)
_Specialisation = tuple[Any, ...]

# A binding holds its resolver's address as long as the process lives.
_kept_alive: list[Any] = []
# Operators whose Python rules torch has; torch refuses them a second time.
_with_rules: set[str] = set()


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
        self._has_fast_form = has_fast_form
        self._has_long_form = has_long_form
        self._binding: ctypes.CDLL | None = None
        self._cuda_index: int | None = None  # a device that was asked for
        self._start: warm.Note | None = None  # what an earlier process noted for the first call
        self._guard = threading.Lock()
        self._pending = threading.local()
        self._wanted: dict[_Specialisation, str] = {}  # variants by name, see use()
        # What the binding asked, and where it keeps the answer for as long as the process lives.
        self._resolved: dict[_Specialisation, list[tuple[_Numbers, int]]] = {}
        self._libraries: dict[tuple[_Numbers, str], ctypes.CDLL] = {}
        self._prepared: dict[tuple[int, warm.Question], ctypes.CDLL] = {}  # by CUDA device
        _operators.append(self)

    def load(self) -> None:
        """Build or load the binding and register the Python rules; the first call does, the others return.

        Raises what :func:`kernels.jit.load.load` raises.
        """
        with self._guard:
            if self.loaded:
                return
            import torch

            library = self._answer((self.name, "binding"), self._binding_spec, binding=self.name)
            resolver = _RESOLVER(self._resolve)
            _kept_alive.append(resolver)
            library.binding_set_resolver.argtypes = [_RESOLVER]
            library.binding_set_resolver.restype = None
            library.binding_set_resolver(resolver)
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
            operators = getattr(torch.ops, NAMESPACE)
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

    def prebuild(self) -> None:
        """Start building the binding and the default specialisation in the background.

        Returns at once, initialises no CUDA, raises nothing: what goes wrong is raised
        by the first call, which tries again. ``KERNELS_PREBUILD=0`` turns it off.
        """
        if os.environ.get("KERNELS_PREBUILD", "1") == "0" or self.loaded:
            return
        # Which GPU there is takes too long to ask here, so the note says for which machine it holds.
        start = (
            self.name,
            "start",
            os.uname().nodename,
            os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
            *_named(_variable()),
        )
        self._start = warm.noted(start)
        if self._start is not None:
            return
        thread = threading.Thread(
            target=self._prebuild, args=(start,), name=f"prebuild {self.name}", daemon=True
        )
        thread.start()
        atexit.register(thread.join, _EXIT_WAIT_S)

    def _prebuild(self, start: warm.Question) -> None:
        try:
            with warm.import_guard:
                from kernels.device import peek_cuda_capability
                from kernels.jit import build, load
                from kernels.jit.spec import kernel_spec

                problem = self._problem()
            gpu = peek_cuda_capability() if _torch_has_cuda() else None
            device, capability = ("cpu", _cpu_capability()) if gpu is None else ("cuda", gpu)
            request = problem.default_request(device, _arch(device, capability))
            specs = {
                (self.name, "binding"): self._binding_spec(),
                self._question(
                    device, capability, request.dtype, request.head_dim, request.group_size, _variable()
                ): kernel_spec(problem, request, _variable()),
            }
            futures = {question: load.submit(spec) for question, spec in specs.items()}
            load.note(
                start,
                {asked: (build.key(spec), futures[asked].result()) for asked, spec in specs.items()},
                self._modules(),
            )
        except Exception:
            # An early start is a favour; the call that needs the kernel raises what is wrong.
            _log.debug("the early build of %s failed", self.name, exc_info=True)

    def use(self, request: Request, variant: str) -> None:
        """Have the variant called ``variant`` serve calls like ``request`` from now on, at every precision.

        ``""`` stands for the one that the problem chooses, whatever ``KERNELS_VARIANT`` names.
        What a CUDA graph holds stays as it is. For measuring: no other thread may call the
        operator meanwhile. Raises ``ValueError`` for a variant that does not serve
        ``request``, and what building and loading it raises.
        """
        from kernels.problem import choose_variant

        choose_variant(self._problem(), request, variant)
        asked = (request.device, request.dtype, request.head_dim, request.group_size)
        wanted = (*asked, request.long)
        self._wanted[wanted] = variant
        for numbers, entry in self._resolved.get(asked, ()):
            if numbers[6] != request.long:
                continue
            key = (numbers, variant)
            if key not in self._libraries:
                self._libraries[key] = self._library(*numbers)
            library = self._libraries[key]
            functions = _FUNCTIONS.pack(
                _address(library.kernel_launch), _address(library.kernel_error_string)
            )
            ctypes.memmove(entry, functions, _FUNCTIONS.size)

    def explain(self, error: Exception) -> BaseException:
        """The exception this thread's resolver left behind ``error``, else ``error`` itself."""
        pending = getattr(self._pending, "error", None)
        self._pending.error = None
        if pending is not None and _words(pending)[:200] in str(error):
            return pending
        return error

    def _resolve(self, request: int, entry: int) -> int:
        """Called from C++: fill in ``entry`` and return 0, or leave the reason there and return 1."""
        try:
            numbers = _REQUEST.unpack(ctypes.string_at(request, _REQUEST.size))
            library = self._library(*numbers)
            if self._fast_form_of(*numbers[:4]):
                self._must_ask()  # before the entry is there to be found
            filled = _ENTRY.pack(_address(library.kernel_launch), _address(library.kernel_error_string), b"")
            asked = (_DEVICES[numbers[0]], _DTYPES[numbers[2]], *numbers[3:5])
            self._resolved.setdefault(asked, []).append((numbers, entry))
            if asked[0] == "cuda" and self._cuda_index is None:
                with self._guard:
                    self._cuda_index = numbers[1]
                    self.direct = self.fast_direct = self._connect
            return 0
        except BaseException as error:  # nothing may pass through C++ frames
            self._pending.error = error
            words = _words(error).encode("utf-8", "replace")[: _ERROR_BYTES - 1]
            filled = _ENTRY.pack(0, 0, words.decode("utf-8", "ignore").encode())  # no letter cut in two
            return 1
        finally:
            ctypes.memmove(entry, filled, _ENTRY.size)

    def _fast_form_of(self, device_type: int, index: int, dtype_number: int, head_dim: int) -> bool:
        return _DEVICES[device_type] == "cuda" and self._has_fast_form(
            _cuda_capability(index), _DTYPES[dtype_number], head_dim
        )

    def _library(
        self,
        device_type: int,
        index: int,
        dtype_number: int,
        head_dim: int,
        group_size: int,
        fast: int,
        is_long: int,
    ) -> ctypes.CDLL:
        device, dtype = _DEVICES[device_type], _DTYPES[dtype_number]
        fast_form = bool(fast) and self._fast_form_of(device_type, index, dtype_number, head_dim)
        capability = _cpu_capability() if device == "cpu" else _cuda_capability(index)
        variant = self._wanted.get((device, dtype, head_dim, group_size, bool(is_long)), _variable())
        long_form = bool(is_long) and self._has_long_form(capability, dtype, head_dim)

        def spec() -> KernelSpec:
            from kernels.jit.spec import kernel_spec
            from kernels.problem import Request

            arch = _arch(device, capability)
            request = Request(device, arch, dtype, head_dim, group_size, long_form)
            return kernel_spec(self._problem(), request, variant, fast=fast_form)

        question = self._question(
            device, capability, dtype, head_dim, group_size, variant, fast_form, long_form
        )
        if device == "cpu":
            return self._answer(question, spec)
        if (index, question) in self._prepared:
            return self._prepared[index, question]
        import torch

        with torch.cuda.device(index):
            if torch.cuda.is_current_stream_capturing():
                from kernels.errors import CaptureError

                at = " at this float32 matmul precision" if fast_form else ""
                at += " with sequences as long as these" if long_form else ""
                raise CaptureError(
                    f"{self.name} with {dtype}, head_dim={head_dim}, group_size={group_size} is first "
                    f"called{at} inside CUDA graph capture, where nothing can be built or loaded; call it "
                    "once before"
                )
            library = self._answer(question, spec)
            code = library.kernel_prepare()
        if code:
            from kernels.errors import LaunchError

            describe = library.kernel_error_string
            describe.restype = ctypes.c_char_p
            raise LaunchError(
                f"{self.name} cannot be loaded on cuda:{index} ({_arch(device, capability)}): "
                f"{describe(code).decode()} (CUDA error {code})"
            )
        self._prepared[index, question] = library
        return library

    def _question(
        self,
        device: str,
        capability: str,
        dtype: str,
        head_dim: int,
        group_size: int,
        variant: str,
        fast: bool = False,
        is_long: bool = False,
    ) -> warm.Question:
        which = (*(_named(variant) or (("fast",) if fast else ())), *(("long",) if is_long else ()))
        return (self.name, device, capability, dtype, str(head_dim), str(group_size), *which)

    def _answer(
        self, question: warm.Question, spec: Callable[[], KernelSpec], *, binding: str = ""
    ) -> ctypes.CDLL:
        """The loaded library that answers ``question``: by a note, or the long way through ``spec``."""
        found = warm.answer_in(self._start, question) or warm.find(question)
        if found is not None:
            digest, path = found
            try:
                library = warm.open_library(digest, path, binding)
                warm.count("hits")
                return library
            except OSError:
                pass  # whole and yet it cannot be loaded: the long way builds it anew
        with warm.import_guard:
            from kernels.jit import load

            wanted = spec()
        return load.answer(question, wanted, self._modules())

    def _binding_spec(self) -> KernelSpec:
        from kernels.jit.spec import binding_spec

        problem = self._problem()
        return binding_spec(problem.name, problem.binding)

    def _modules(self) -> list[str]:
        """The Python files of the problem's package: they choose variants and their arguments."""
        folder = os.path.dirname(os.path.abspath(self._problem.__code__.co_filename))
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".py")]


_operators: list[Operator] = []


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


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _torch_has_cuda() -> bool:
    import torch

    return torch.version.cuda is not None


def _variable() -> str:
    """The variant that ``KERNELS_VARIANT`` names, or ``""``."""
    return os.environ.get("KERNELS_VARIANT", "")


def _named(variant: str) -> tuple[str, ...]:
    """What a question says of a variant that is asked for by name."""
    return (f"variant {variant}",) if variant else ()


# Questions name a processor by torch's word for it, which decides the toolkit's: a warm start
# does without kernels/device.py.


def _cpu_capability() -> str:
    """Torch's word for this CPU, such as ``"AVX2"``."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _cuda_capability(index: int) -> str:
    """The compute capability of CUDA device ``index``, such as ``"9.0"``. Initialises CUDA."""
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    return f"{major}.{minor}"


def _arch(device: str, capability: str) -> str:
    """The architecture a ``Request`` carries for this CPU, or for a GPU of ``capability``."""
    from kernels.device import cpu_arch, cuda_arch_name

    return cpu_arch() if device == "cpu" else cuda_arch_name(capability)
