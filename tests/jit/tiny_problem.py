"""A problem whose kernels build in no time, and the sources to copy and spoil."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from kernels.device import cpu_arch
from kernels.jit.spec import KernelSpec, binding_spec
from kernels.problem import Problem, Request, Variant

HERE = Path(__file__).resolve().parent
ARCH = "sm_90a"


def copy_sources(folder: Path) -> Path:
    """Copy the tiny sources into ``folder`` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tiny.cpp", "tiny.cu", "tiny_value.h", "tiny_binding.cpp"):
        shutil.copy(HERE / name, folder / name)
    return folder


def cpu_spec(head_dim: int = 8, source: Path = HERE / "tiny.cpp", launcher: str = "") -> KernelSpec:
    launcher = launcher or f"tiny::launch<float, {head_dim}>"
    params = (("dtype", "float32"), ("head_dim", str(head_dim)))
    return KernelSpec("tiny", "fill", "cpu", cpu_arch(), str(source), launcher, params)


def cuda_spec(head_dim: int = 8, source: Path = HERE / "tiny.cu", arch: str = ARCH) -> KernelSpec:
    params = (("dtype", "float32"), ("head_dim", str(head_dim)))
    return KernelSpec("tiny", "fill", "cuda", arch, str(source), f"tiny::launch<float, {head_dim}>", params)


def binding(source: Path = HERE / "tiny_binding.cpp") -> KernelSpec:
    return binding_spec("tiny", str(source))


def variant(
    device: str = "cpu", name: str = "fill", source: Path = HERE / "tiny.cpp", **changes: Any
) -> Variant:
    fields = {
        "name": name,
        "device": device,
        "source": str(source),
        "launcher": "tiny::launch",
        "template_arguments": lambda request: ("float", str(request.head_dim)),
        "serves": lambda request: request.dtype == "float32",
        "why": "the only one",
    }
    return Variant(**{**fields, **changes})


def problem(*variants: Variant, source: Path = HERE / "tiny_binding.cpp") -> Problem:
    return Problem(
        name="tiny",
        binding=str(source),
        variants=variants or (variant(),),
        cases=(),
        model=object,
        model_new=object,
        get_inputs=list,
        get_init_inputs=list,
        make_inputs=lambda **shape: [],
        oracle=lambda *inputs: None,
        jitter=lambda seed: None,
        default_request=lambda device, arch: Request(device, arch, "float32", 8),
        flops=lambda shape: 0,
        least_bytes=lambda shape, dtype: 0,
    )
