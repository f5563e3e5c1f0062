"""What a problem package tells the toolkit about itself.

A problem package (``gqa_attn``, ``fp8_attn``) fills in one :class:`Problem`; the
command line, the JIT and the tests read nothing else of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Case",
    "Problem",
    "Request",
    "Tolerance",
    "Variant",
    "check_supported",
    "choose_variant",
    "find_problem",
    "names_of_variants",
]


@dataclass(frozen=True)
class Tolerance:
    """When two outputs count as the same: ``|a - b| <= atol + rtol * |b|``.

    ``oracle_ratio`` and ``oracle_floor`` bound the largest error against float64 by the
    reference's own: ``error <= oracle_ratio * reference_error + oracle_floor``. With an
    infinite ``atol`` no distance from the reference counts, and the judge bounds each element by itself:
    there ``reference_error`` is the larger of the reference's at that element and what rounding to float32
    moves it (``kernels/evaluate/grading.py``).
    """

    atol: float = 1e-4
    rtol: float = 1e-4
    oracle_ratio: float = 2.0
    oracle_floor: float = 1e-6


# kernels/bindings/attention.h has the same two.
NARROW_HEAD_DIM = 32
SHORT_STEPS = 128


@dataclass(frozen=True)
class Case:
    """One input to check on, and why it is there.

    ``shape`` and ``options`` go to the problem's ``make_inputs`` as keyword arguments.
    """

    name: str
    why: str
    shape: Mapping[str, int]
    dtype: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: Tolerance = Tolerance()


@dataclass(frozen=True)
class Request:
    """The part of a call that decides which specialisation serves it.

    ``device`` is ``"cpu"`` or ``"cuda"``; ``arch`` an nvcc architecture
    (``"sm_90a"``) or a CPU level (``"x86-64-v3"``); ``dtype`` a torch dtype's
    name without the ``torch.`` (``"float32"``); ``group_size`` is
    num_heads / num_kv_heads. Batch and sequence length are run-time values; ``long`` is whether
    the library of :func:`is_long` calls is asked for.
    """

    device: str
    arch: str
    dtype: str
    head_dim: int
    group_size: int = 1
    long: bool = False


@dataclass(frozen=True)
class Variant:
    """One kernel: a source file and the requests it serves.

    ``source`` is a path below ``kernels/``. ``launcher`` is the C++ name of the
    launcher template; ``template_arguments(request)`` gives its arguments as
    C++ text. Variants are listed fastest first; ``why`` says why this one
    stands where it stands. One that is not ``chosen`` serves when it is asked for by
    name, and never by itself: a kernel that is yet to be measured. A ``fast`` one is less
    accurate: it serves by itself only where torch's float32 matmul precision is below
    ``"highest"``; its problem's ``Operator`` is told for which requests there is one.
    """

    name: str
    device: str
    source: str
    launcher: str
    template_arguments: Callable[[Request], Sequence[str]]
    serves: Callable[[Request], bool]
    why: str
    chosen: bool = True
    fast: bool = False


@dataclass(frozen=True)
class Problem:
    """Everything the toolkit knows of a problem package.

    ``model`` is the readable reference, ``model_new`` its fast twin with the same
    signature; ``oracle(*inputs)`` computes in float64 and returns float64;
    ``make_inputs(shape..., dtype=, seed=, device=)`` makes the inputs of a
    :class:`Case`; ``jitter(seed)`` draws one consistent random :class:`Case`.
    ``default_request(device, arch)`` is the specialisation of ``get_inputs()``.
    ``peers(device)`` names other ways to the same result, each called with the
    inputs of a case: what ``bench`` times beside ``model_new``; one that does not take
    them raises. ``bench_cases`` are the lines of ``bench``'s table, in its order.
    ``oracle_rows(rows, *inputs)`` is what ``oracle`` returns at the indices ``rows`` of
    dimension 1, in bounded memory: errors are measured on those where all would take too long.
    ``check_arguments(*inputs)`` raises what ``model_new`` raises for inputs that it does not take;
    ``dtypes`` and ``head_dims``, the least and the largest, are what an error says is supported.
    """

    name: str
    binding: str
    variants: tuple[Variant, ...]
    cases: tuple[Case, ...]
    model: type
    model_new: type
    get_inputs: Callable[[], list[Any]]
    get_init_inputs: Callable[[], list[Any]]
    make_inputs: Callable[..., list[Any]]
    oracle: Callable[..., Any]
    jitter: Callable[[int], Case]
    default_request: Callable[[str, str], Request]
    flops: Callable[[Mapping[str, int]], int]
    least_bytes: Callable[[Mapping[str, int], str], int]
    peers: Callable[[str], Mapping[str, Callable[..., Any]]] | None = None
    bench_cases: tuple[Case, ...] = ()
    oracle_rows: Callable[..., Any] | None = None
    check_arguments: Callable[..., None] | None = None
    dtypes: tuple[str, ...] = ()
    head_dims: tuple[int, int] | None = None


def check_supported(problem: Problem, dtype: str, head_dim: int) -> None:
    """Raises ``ValueError``, naming what is supported, where the problem has no kernel for one of these."""
    if problem.dtypes and dtype not in problem.dtypes:
        there = ", ".join(problem.dtypes)
        raise ValueError(f"{problem.name}: dtype={dtype} is not supported; supported: {there}")
    if problem.head_dims and not problem.head_dims[0] <= head_dim <= problem.head_dims[1]:
        there = " to ".join(map(str, problem.head_dims))
        raise ValueError(f"{problem.name}: head_dim={head_dim} is not supported; supported: {there}")


def choose_variant(problem: Problem, request: Request, name: str = "", *, fast: bool = False) -> Variant:
    """The variant called ``name``, or the first ``chosen`` one that serves ``request``.

    Without a name, a ``fast`` variant is taken only where ``fast`` is true.
    Raises ``ValueError`` when there is none, or ``name`` is none of the problem's, not for
    the request's device, or does not serve the request; it says what there is.
    """
    there = [variant for variant in problem.variants if variant.device == request.device]
    serving = [variant for variant in there if variant.serves(request)]
    for variant in serving:
        if variant.name == name or (not name and variant.chosen and (fast or not variant.fast)):
            return variant
    if not serving:
        check_supported(problem, request.dtype, request.head_dim)
    names = ", ".join(variant.name for variant in there) or "none"
    wanted = (
        f"dtype={request.dtype}, head_dim={request.head_dim}, group_size={request.group_size} "
        f"{f'for more than {SHORT_STEPS} steps ' if request.long else ''}on {request.device} ({request.arch})"
    )
    if not name:
        raise ValueError(f"{problem.name}: no kernel serves {wanted}; variants for this device: {names}")
    if name not in names_of_variants(problem):
        raise ValueError(f"{problem.name} has no variant {name!r}; it has: {_with_devices(problem)}")
    if name not in [variant.name for variant in there]:
        raise ValueError(
            f"{problem.name}: variant {name!r} is not for {request.device}; variants for it: {names}"
        )
    able = ", ".join(variant.name for variant in serving) or "none"
    raise ValueError(f"{problem.name}: variant {name!r} does not serve {wanted}; variants that do: {able}")


def is_long(device: str, head_dim: int, shape: Mapping[str, int]) -> bool:
    """Whether a call of this ``head_dim``, with the lengths in ``shape``, is of the library for long ones.

    Where rows are narrow there are two on CUDA: short sequences, those of the default inputs
    among them, need not wait for the kernels of long ones.
    """
    lengths = [length for name, length in shape.items() if name.startswith("seqlen")]
    return device == "cuda" and head_dim <= NARROW_HEAD_DIM and min(lengths, default=0) > SHORT_STEPS


def names_of_variants(problem: Problem, device: str = "") -> list[str]:
    """The names of the problem's variants, each once; of those for ``device`` alone when given."""
    return list(dict.fromkeys(v.name for v in problem.variants if device in ("", v.device)))


def _with_devices(problem: Problem) -> str:
    return ", ".join(f"{variant.name} ({variant.device})" for variant in problem.variants) or "none"


def find_problem(name: str) -> Problem:
    """Import the package ``name`` and return its ``PROBLEM``.

    Raises ``ValueError`` when there is no such package, it names no problem, or one that is not called
    as the package: a copy that was not renamed would answer as its original.
    """
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        from kernels.discover import problem_packages

        there = ", ".join(problem_packages()) or "none"
        raise ValueError(f"no problem package {name!r}; here are: {there}") from None
    problem = getattr(package, "PROBLEM", None)
    if not isinstance(problem, Problem):
        raise ValueError(f"package {name!r} has no PROBLEM; a problem package defines PROBLEM = Problem(...)")
    if problem.name != name:
        raise ValueError(
            f"package {name!r} has PROBLEM.name={problem.name!r}; its problem.py must say name={name!r}"
        )
    return problem
