"""One specialisation of one kernel: a readable name and everything that decides its text."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

from kernels.problem import Problem, Request, choose_variant

__all__ = ["BINDING", "KernelSpec", "binding_spec", "kernel_spec"]

BINDING = "binding"
_SHORT = {"head_dim": "d", "group_size": "g"}


@dataclass(frozen=True)
class KernelSpec:
    """One library to build.

    ``source`` is a path below ``kernels/`` (an absolute path serves a source kept
    elsewhere). ``launcher`` is the full C++ name of the launcher, such as
    ``"gqa_attn::launch<float, 32, 4>"``, and empty for a binding. ``params`` are the
    parameters as people read them: ``(("dtype", "float32"), ("head_dim", "32"))``.
    """

    problem: str
    variant: str
    device: str
    arch: str
    source: str
    launcher: str
    params: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """``"gqa_attn-portable-sm_90a-float32-d32-g4"``, or ``"gqa_attn-binding"``."""
        if self.is_binding:
            return f"{self.problem}-{BINDING}"
        values = (value if key == "dtype" else _SHORT.get(key, key) + value for key, value in self.params)
        return "-".join((self.problem, self.variant, self.arch, *values))

    @property
    def is_binding(self) -> bool:
        return self.variant == BINDING


def kernel_spec(problem: Problem, request: Request, name: str = "", *, fast: bool = False) -> KernelSpec:
    """The specialisation that serves ``request``: that of the variant ``name``, else the first chosen.

    ``fast`` is as in :func:`kernels.problem.choose_variant`.

    Raises what :func:`kernels.problem.choose_variant` raises.
    """
    variant = choose_variant(problem, request, name, fast=fast)
    arguments = tuple(variant.template_arguments(request))
    params = [("dtype", request.dtype), ("head_dim", str(request.head_dim))]
    # A variant that takes group_size at run time has one library for all of them.
    other = replace(request, group_size=2 if request.group_size == 1 else 1)
    if tuple(variant.template_arguments(other)) != arguments:
        params.append(("group_size", str(request.group_size)))
    return KernelSpec(
        problem=problem.name,
        variant=variant.name,
        device=request.device,
        arch=request.arch,
        source=variant.source,
        launcher=f"{variant.launcher}<{', '.join(arguments)}>",
        params=tuple(params),
    )


def binding_spec(problem_name: str, binding: str) -> KernelSpec:
    """The library that registers a problem's operators; ``binding`` is a path below ``kernels/``."""
    return KernelSpec(problem_name, BINDING, "cpu", platform.machine(), binding, "", ())
