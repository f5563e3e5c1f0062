"""One first call of a problem's ``ModelNew``, timed: ``python -m kernels.startup.first_call gqa_attn cpu``.

The time runs from ``import torch`` done (and the device ready) to the result, without
what ``get_inputs()`` takes: importing the package, building or loading both libraries,
and the call. With ``--build sm_90a`` nothing is called: the same libraries are built, or
found, for a GPU that need not be here.
"""

from __future__ import annotations

import argparse
import json
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--build", metavar="ARCH", help="build for this architecture and call nothing")
    arguments = parser.parse_args()

    started = time.perf_counter()
    import torch

    imported = time.perf_counter() - started
    torch.zeros(1, device="cpu" if arguments.build else arguments.device).add_(1)
    seconds = (
        _build(arguments.package, arguments.build)
        if arguments.build
        else _call(arguments.package, arguments.device)
    )
    print(json.dumps({"seconds": seconds, "import_torch": imported}))


def _call(name: str, device: str) -> float:
    import importlib

    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    package = importlib.import_module(name)
    model_new = package.ModelNew
    before_inputs = time.perf_counter()
    inputs = [x.to(device) for x in package.get_inputs()]
    if device == "cuda":
        torch.cuda.synchronize()
    init_inputs = package.get_init_inputs()
    after_inputs = time.perf_counter()
    model_new(*init_inputs)(*inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started - (after_inputs - before_inputs)


def _build(name: str, arch: str) -> float:
    started = time.perf_counter()
    from kernels.jit.load import obtain_all
    from kernels.jit.spec import binding_spec, kernel_spec
    from kernels.problem import find_problem

    problem = find_problem(name)
    obtain_all(
        [
            binding_spec(problem.name, problem.binding),
            kernel_spec(problem, problem.default_request("cuda", arch)),
        ]
    )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
