"""``PROBLEM``: everything the toolkit knows of attention over low-precision q, k and v."""

from __future__ import annotations

from kernels.attention import MAX_HEAD_DIM
from kernels.problem import Problem

from .bench_cases import BENCH_CASES
from .cost import flops, least_bytes
from .inputs import CASES, get_init_inputs, get_inputs, jitter, make_inputs
from .model_new import DTYPES, ModelNew, check_arguments
from .peers import peers
from .reference import Model, oracle, oracle_rows
from .variants import VARIANTS, default_request

__all__ = ["PROBLEM"]

PROBLEM = Problem(
    name="fp8_attn",
    binding="bindings/fp8_attn.cpp",
    variants=VARIANTS,
    cases=CASES,
    model=Model,
    model_new=ModelNew,
    get_inputs=get_inputs,
    get_init_inputs=get_init_inputs,
    make_inputs=make_inputs,
    oracle=oracle,
    jitter=jitter,
    default_request=default_request,
    flops=flops,
    least_bytes=least_bytes,
    peers=peers,
    bench_cases=BENCH_CASES,
    oracle_rows=oracle_rows,
    check_arguments=check_arguments,
    dtypes=DTYPES,
    head_dims=(1, MAX_HEAD_DIM),
)
