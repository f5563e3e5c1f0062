"""Which library serves a call: what a binding asks for each specialisation that it has not seen.

A binding calls back from C++ with numbers; the answer is a loaded kernel library's two
functions. A note of an earlier process says which file that is, or it is built.
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

from kernels.jit import warm

if TYPE_CHECKING:
    from kernels.jit.spec import KernelSpec
    from kernels.problem import Problem, Request

__all__ = ["CALLBACK", "Resolver"]

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
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)

# (device type, device index, dtype, head_dim, group size, fast, long) as the binding asks for it
_Numbers = tuple[int, ...]
# (device, dtype, head_dim, group size)
_Specialisation = tuple[Any, ...]


class Resolver:
    """Finds, builds and remembers the libraries of the operator called ``name``.

    ``problem``, ``has_fast_form`` and ``has_long_form`` are the operator's. ``met_fast_form`` is
    called before a library is known for whose requests there is a fast form, ``met_cuda`` with the
    index of each CUDA device that is asked for.
    """

    def __init__(
        self,
        name: str,
        problem: Callable[[], Problem],
        *,
        has_fast_form: Callable[[str, str, int], bool],
        has_long_form: Callable[[str, str, int], bool],
        met_fast_form: Callable[[], None],
        met_cuda: Callable[[int], None],
    ) -> None:
        self.name = name
        self._problem = problem
        self._has_fast_form = has_fast_form
        self._has_long_form = has_long_form
        self._met_fast_form = met_fast_form
        self._met_cuda = met_cuda
        self._start: warm.Note | None = None  # what an earlier process noted for the first call
        self._pending = threading.local()
        self._wanted: dict[_Specialisation, str] = {}  # variants by name, see use()
        # What the binding asked, and where it keeps the answer for as long as the process lives.
        self._resolved: dict[_Specialisation, list[tuple[_Numbers, int]]] = {}
        self._libraries: dict[tuple[_Numbers, str], ctypes.CDLL] = {}
        self._prepared: dict[tuple[int, warm.Question], ctypes.CDLL] = {}  # by CUDA device

    def binding(self) -> ctypes.CDLL:
        """The binding library, built or loaded. Raises what :func:`kernels.jit.load.load` raises."""
        return self._answer((self.name, "binding"), self._binding_spec, binding=self.name)

    def resolve(self, request: int, entry: int) -> int:
        """Called from C++: fill in ``entry`` and return 0, or leave the reason there and return 1."""
        try:
            numbers = _REQUEST.unpack(ctypes.string_at(request, _REQUEST.size))
            library = self._library(*numbers)
            if self._fast_form_of(*numbers[:4]):
                self._met_fast_form()  # before the entry is there to be found
            filled = _ENTRY.pack(_address(library.kernel_launch), _address(library.kernel_error_string), b"")
            asked = (_DEVICES[numbers[0]], _DTYPES[numbers[2]], *numbers[3:5])
            self._resolved.setdefault(asked, []).append((numbers, entry))
            if asked[0] == "cuda":
                self._met_cuda(numbers[1])
            return 0
        except BaseException as error:  # nothing may pass through C++ frames
            self._pending.error = error
            words = _words(error).encode("utf-8", "replace")[: _ERROR_BYTES - 1]
            filled = _ENTRY.pack(0, 0, words.decode("utf-8", "ignore").encode())  # no letter cut in two
            return 1
        finally:
            ctypes.memmove(entry, filled, _ENTRY.size)

    def explain(self, error: Exception) -> BaseException:
        """See :meth:`kernels.jit.operator.Operator.explain`."""
        pending = getattr(self._pending, "error", None)
        self._pending.error = None
        if pending is not None and _words(pending)[:200] in str(error):
            return pending
        return error

    def use(self, request: Request, variant: str) -> None:
        """See :meth:`kernels.jit.operator.Operator.use`."""
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

    def prebuild(self) -> None:
        """See :meth:`kernels.jit.operator.Operator.prebuild`."""
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
