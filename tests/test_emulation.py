"""CUDA kernels on the CPU: parity, every order of threads the same, and what the emulator must see."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from attention_checks import assert_close, assert_same
from emulation import address_sanitizer, build, run

from fp8_attn import PROBLEM as FP8_ATTN
from gqa_attn import PROBLEM as GQA_ATTN
from gqa_attn.inputs import BY_DTYPE, SMALL_V
from kernels.attention_variants import CPP_TYPES
from kernels.evaluate.correctness import compare_with_oracle
from kernels.layouts import apply_layout
from kernels.problem import Problem, Tolerance

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="the emulator needs _Float16 of g++"
)


@dataclass(frozen=True)
class Wanted:
    """A library to build. ``spoiled`` names one of ``SPOILED``."""

    package: str
    variant: str
    dtype: str
    head_dim: int
    group_size: int = 1
    fast: bool = False
    arch: int = 900
    spoiled: str = ""
    checked: bool = False

    def build(self, folder: Path) -> Path:
        arguments = [CPP_TYPES[self.dtype], str(self.head_dim), str(self.group_size)]
        if self.variant == "hopper":
            arguments.append(str(self.fast).lower())
        source = f"cuda/{self.package}/{self.variant}.cu"
        folder = folder / (self.spoiled or "whole")
        folder.mkdir(exist_ok=True)
        changes = SPOILED.get(self.spoiled)
        return build(self.package, source, arguments, folder, changes, arch=self.arch, checked=self.checked)


class Builds:
    """Libraries, each built once, as many at a time as there are cores."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        self._found: dict[Wanted, Future[Path]] = {}

    def start(self, wanted: Wanted) -> Future[Path]:
        if wanted not in self._found:
            self._found[wanted] = self._pool.submit(wanted.build, self._folder)
        return self._found[wanted]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def builds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    """Builds what the selected tests name, ahead of them."""
    found = Builds(tmp_path_factory.mktemp("emulated"))
    for item in request.session.items:
        ahead = AHEAD.get(getattr(item, "originalname", ""))
        if ahead is not None and item.module is request.module:
            found.start(ahead(item.callspec.params["name"]))
    yield found
    found.close()


def assert_right(
    problem: Problem, out: torch.Tensor, inputs: list[torch.Tensor], tolerance: Tolerance
) -> None:
    """Near the reference, and against float64 no more than twice its error."""
    want = problem.model()(*inputs)
    assert_close(out, want, tolerance)
    against_oracle = compare_with_oracle(out, want, problem.oracle(*inputs), tolerance)
    assert against_oracle.passed, against_oracle.reason


def finished(workspace: torch.Tensor, heads: int, rows: int) -> torch.Tensor:
    """Of a Hopper kernel's workspace: for each half of 128 rows of each head, whether it wrote them."""
    count = heads * 2 * -(-rows // 128)
    return workspace[-count:].view(heads, -1) != 0


GQA = {
    # variant, dtype, head_dim, (num_heads, num_kv_heads), seqlen_q, seqlen_k
    "hopper_float32": ("hopper", "float32", 128, (4, 1), 150, 150),
    "hopper_float32_head_dim_32": ("hopper", "float32", 32, (4, 1), 270, 270),
    "hopper_float32_head_dim_7": ("hopper", "float32", 7, (2, 1), 140, 140),
    "hopper_bfloat16_head_dim_16": ("hopper", "bfloat16", 16, (2, 2), 260, 260),
    "hopper_float32_head_dim_40": ("hopper", "float32", 40, (6, 2), 140, 140),
    "hopper_float32_head_dim_256": ("hopper", "float32", 256, (1, 1), 100, 100),
    "hopper_bfloat16": ("hopper", "bfloat16", 128, (3, 1), 140, 140),
    "hopper_bfloat16_short_of_a_tile": ("hopper", "bfloat16", 72, (3, 1), 110, 110),
    "hopper_float16": ("hopper", "float16", 64, (4, 1), 150, 150),
    "hopper_float16_head_dim_63": ("hopper", "float16", 63, (2, 1), 200, 200),
    "hopper_more_rows_than_keys": ("hopper", "float32", 128, (4, 1), 100, 30),
    "hopper_fewer_rows_than_a_warpgroup_has": ("hopper", "float32", 160, (1, 1), 50, 190),
    "hopper_more_keys_than_rows": ("hopper", "float32", 128, (4, 1), 70, 190),
    "tensor_float32": ("tensor", "float32", 128, (4, 1), 100, 100),
    "tensor_float32_long": ("tensor", "float32", 64, (2, 1), 270, 270),
    "tensor_float32_head_dim_40": ("tensor", "float32", 40, (3, 1), 140, 140),
    "tensor_float32_head_dim_256": ("tensor", "float32", 256, (1, 1), 90, 90),
    "tensor_bfloat16": ("tensor", "bfloat16", 128, (4, 2), 90, 90),
    "tensor_float16_long": ("tensor", "float16", 80, (2, 1), 260, 260),
    "tensor_more_rows_than_keys": ("tensor", "float32", 72, (4, 1), 130, 30),
    "tensor_more_keys_than_rows": ("tensor", "float32", 72, (4, 1), 40, 190),
    "portable_float32": ("portable", "float32", 72, (4, 2), 70, 70),
    "portable_float16": ("portable", "float16", 33, (3, 1), 40, 40),
    "short_float32": ("portable", "float32", 32, (8, 2), 80, 80),
    "short_bfloat16": ("portable", "bfloat16", 64, (4, 1), 50, 50),
}


def gqa_library(name: str) -> Wanted:
    variant, dtype, head_dim, heads, *_ = GQA[name]
    return Wanted("gqa_attn", variant, dtype, head_dim, heads[0] // heads[1])


@pytest.mark.parametrize("name", GQA)
def test_gqa_attn(builds: Builds, name: str) -> None:
    variant, dtype, head_dim, heads, seqlen_q, seqlen_k = GQA[name]
    built = builds.start(gqa_library(name)).result()
    inputs = GQA_ATTN.make_inputs(2, seqlen_q, seqlen_k, *heads, head_dim, dtype=dtype)
    out, workspace = run(built, *inputs)
    assert_right(GQA_ATTN, out, inputs, BY_DTYPE[dtype])
    assert (len(workspace) > 0) == (variant == "hopper")
    if variant == "hopper":
        assert finished(workspace, 2 * heads[1], seqlen_q * heads[0] // heads[1]).all()


@pytest.mark.parametrize(
    "name", ["hopper_float32_head_dim_40", "tensor_float32_head_dim_40", "short_float32", "portable_float32"]
)
def test_small_values(builds: Builds, name: str) -> None:
    """Parts of V that were denormal in float16 would leave 3e-8."""
    _, _, head_dim, heads, seqlen_q, seqlen_k = GQA[name]
    built = builds.start(gqa_library(name)).result()
    options = {"magnitude": 1e-4, "v_magnitude": 1e-4}
    inputs = GQA_ATTN.make_inputs(1, seqlen_q, seqlen_k, *heads, head_dim, **options)
    out, _ = run(built, *inputs)
    assert_right(GQA_ATTN, out, inputs, SMALL_V)


@pytest.mark.parametrize("head_dim", [128, 232])
def test_what_the_tensor_cores_cut_off_is_made_up_for(builds: Builds, head_dim: int) -> None:
    """Without that, and in one sum, the error is 1.6 times the reference's at 128 and 1.7 times at 232."""
    built = builds.start(Wanted("gqa_attn", "hopper", "float32", head_dim, 1)).result()
    inputs = GQA_ATTN.make_inputs(1, 200, 200, 4, 4, head_dim, seed=5)
    out, _ = run(built, *inputs)
    exact = GQA_ATTN.oracle(*inputs)
    errors = [(each.double() - exact).square().mean().sqrt() for each in (out, GQA_ATTN.model()(*inputs))]
    assert errors[0] < 1.35 * errors[1]


@pytest.mark.parametrize("head_dim", [32, 128])
def test_rows_of_a_single_weight_are_a_row_of_v(builds: Builds, head_dim: int) -> None:
    """The reference has no error there; a weight that is no power of two would leave 8e-7 and more."""
    built = builds.start(Wanted("gqa_attn", "hopper", "float32", head_dim, 4)).result()
    q, k, v = GQA_ATTN.make_inputs(1, 150, 150, 4, 1, head_dim)
    out, _ = run(built, q * 1e5, k, v)
    exact = GQA_ATTN.oracle(q * 1e5, k, v)
    assert (out.double() - exact).abs().max().item() <= 2.0**-23 * exact.abs().max().item()


FP8 = {
    "hopper_int8": ("hopper", "int8", 128, 260, {}),
    "hopper_int8_head_dim_37": ("hopper", "int8", 37, 130, {}),
    "hopper_int8_head_dim_64": ("hopper", "int8", 64, 300, {}),
    "hopper_int8_head_dim_160": ("hopper", "int8", 160, 140, {}),
    "hopper_int8_head_dim_256": ("hopper", "int8", 256, 140, {}),
    "hopper_int8_negative_scales": ("hopper", "int8", 128, 130, {"scales": "negative"}),
    "hopper_int8_extremes": ("hopper", "int8", 128, 130, {"values": "extremes"}),
    "hopper_int8_large_logits": ("hopper", "int8", 128, 130, {"magnitude": 1e3}),
    "hopper_int8_strided": ("hopper", "int8", 128, 130, {"layout": "every_other", "scales": "strided"}),
    "hopper_uint8": ("hopper", "uint8", 128, 130, {}),
    "hopper_float8_e4m3fn": ("hopper", "float8_e4m3fn", 128, 130, {}),
    "hopper_float8_e4m3fn_negative_scales": ("hopper", "float8_e4m3fn", 128, 130, {"scales": "negative"}),
    "hopper_float8_e5m2": ("hopper", "float8_e5m2", 256, 130, {}),
    "hopper_float16": ("hopper", "float16", 128, 130, {}),
    "hopper_bfloat16": ("hopper", "bfloat16", 64, 150, {"values": "normal"}),
    "hopper_float32": ("hopper", "float32", 128, 130, {"values": "normal"}),
    "hopper_int8_head_dim_32": ("hopper", "int8", 32, 270, {}),
    "hopper_float8_e4m3fn_head_dim_7": ("hopper", "float8_e4m3fn", 7, 150, {"scales": "negative"}),
    "tensor_int8": ("tensor", "int8", 128, 140, {}),
    "tensor_int8_long": ("tensor", "int8", 128, 270, {"scales": "negative"}),
    "tensor_int8_zero_scales": ("tensor", "int8", 128, 60, {"scales": "zero"}),
    "tensor_float8_e5m2": ("tensor", "float8_e5m2", 64, 150, {}),
    "tensor_uint8": ("tensor", "uint8", 72, 150, {}),
    "tensor_float32_huge": ("tensor", "float32", 64, 100, {"values": "huge"}),
    "tensor_float16_normal": ("tensor", "float16", 64, 100, {"values": "normal"}),
    "portable_int8": ("portable", "int8", 72, 60, {}),
    "short_int8": ("portable", "int8", 32, 72, {}),
    "short_float8_e4m3fn": ("portable", "float8_e4m3fn", 32, 72, {"scales": "negative"}),
}


def fp8_library(name: str) -> Wanted:
    variant, dtype, head_dim, *_ = FP8[name]
    return Wanted("fp8_attn", variant, dtype, head_dim)


@pytest.mark.parametrize("name", FP8)
def test_fp8_attn(builds: Builds, name: str) -> None:
    variant, dtype, head_dim, seqlen, options = FP8[name]
    built = builds.start(fp8_library(name)).result()
    inputs = FP8_ATTN.make_inputs(2, seqlen, 2, head_dim, dtype=dtype, **options)
    out, workspace = run(built, *inputs)
    assert_right(FP8_ATTN, out, inputs, Tolerance())
    assert (len(workspace) > 0) == (variant == "hopper")
    if variant == "hopper":
        assert finished(workspace, 4, seqlen).all()


@pytest.mark.parametrize(("head_dim", "seqlen"), [(128, 60), (128, 270), (256, 40), (256, 260)])
def test_tensor_with_less_shared_memory(builds: Builds, head_dim: int, seqlen: int) -> None:
    """Where a block has 99 KiB it is cut up in another way: fewer warps for the same rows, or fewer rows."""
    built = builds.start(Wanted("gqa_attn", "tensor", "float32", head_dim, arch=860)).result()
    inputs = GQA_ATTN.make_inputs(1, seqlen, seqlen, 1, 1, head_dim)
    out, _ = run(built, *inputs)
    assert_right(GQA_ATTN, out, inputs, BY_DTYPE["float32"])


@pytest.mark.parametrize("seqlen", [1, 60, 260])
@pytest.mark.parametrize("variant", ["portable", "tensor", "hopper"])
def test_no_keys(builds: Builds, variant: str, seqlen: int) -> None:
    """The output is zero, and nothing is left under way."""
    built = builds.start(Wanted("gqa_attn", variant, "float32", 64)).result()
    out, _ = run(built, *GQA_ATTN.make_inputs(1, seqlen, 0, 2, 2, 64))
    assert (out == 0).all()


@pytest.mark.parametrize("layout", ["expanded", "offset"])
@pytest.mark.parametrize("head_dim", [4, 252])
def test_tensor_head_dims_that_are_padded(builds: Builds, head_dim: int, layout: str) -> None:
    """``expanded`` is the tensor kernel's, ``offset`` goes on to another."""
    built = builds.start(Wanted("gqa_attn", "tensor", "float16", head_dim, 3)).result()
    inputs = [*apply_layout(layout, *GQA_ATTN.make_inputs(2, 33, 33, 3, 1, head_dim, dtype="float16"))]
    out, _ = run(built, *inputs)
    assert_right(GQA_ATTN, out, inputs, BY_DTYPE["float16"])


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_fast_gqa_attn(builds: Builds, head_dim: int) -> None:
    """As near as half precision: 11 bits of each operand and weight."""
    built = builds.start(Wanted("gqa_attn", "hopper", "float32", head_dim, 2, fast=True)).result()
    inputs = GQA_ATTN.make_inputs(1, 260, 260, 4, 2, head_dim)
    out, workspace = run(built, *inputs)
    error = (out - GQA_ATTN.oracle(*inputs)).abs().max().item()
    assert 1e-5 < error < 2e-3
    assert finished(workspace, 2, 520).all()


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "bfloat16"])
def test_fast_fp8_attn(builds: Builds, dtype: str) -> None:
    """Only the weights are rounded, to 11 bits."""
    built = builds.start(Wanted("fp8_attn", "hopper", dtype, 128, fast=True)).result()
    inputs = FP8_ATTN.make_inputs(1, 260, 2, 128, dtype=dtype)
    out, workspace = run(built, *inputs)
    error = (out - FP8_ATTN.oracle(*inputs)).abs().max().item()
    assert 1e-5 < error < 5e-4
    assert finished(workspace, 2, 260).all()


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("int8", {"scales": "zero"}),
        ("int8", {"scales": "negative", "values": "extremes"}),
        ("float8_e4m3fn", {"scales": "denormal"}),
        ("float32", {"values": "huge"}),
    ],
)
def test_what_hopper_leaves_to_the_portable_kernel(
    builds: Builds, dtype: str, options: dict[str, str]
) -> None:
    """Scales and values that its arithmetic cannot hold: the same answer, some of it from another kernel."""
    built = builds.start(Wanted("fp8_attn", "hopper", dtype, 128)).result()
    inputs = FP8_ATTN.make_inputs(1, 130, 3, 128, dtype=dtype, **options)
    out, workspace = run(built, *inputs)
    assert_right(FP8_ATTN, out, inputs, Tolerance())
    assert not finished(workspace, 3, 130).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize(("variant", "seqlen"), [("hopper", 150), ("tensor", 150), ("tensor", 270)])
def test_not_finite(builds: Builds, variant: str, seqlen: int, which: int, bad: float) -> None:
    """One element that is not finite changes the rows that see it, as in the reference, and no other."""
    built = builds.start(Wanted("fp8_attn", variant, "float8_e5m2", 64)).result()
    inputs = FP8_ATTN.make_inputs(1, seqlen, 2, 64, dtype="float8_e5m2")
    inputs[which][0, 121, 1, 5] = bad
    out, _ = run(built, *inputs)
    assert_close(out, FP8_ATTN.model()(*inputs))
    assert torch.isfinite(out[0, :121]).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["q", "k", "v"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_not_finite_in_16_bits(builds: Builds, dtype: str, which: int, bad: float) -> None:
    """The tensor cores read q as it is: what is not finite shows in the row's shift."""
    built = builds.start(Wanted("gqa_attn", "hopper", dtype, 64)).result()
    inputs = GQA_ATTN.make_inputs(1, 150, 150, 2, 2, 64, dtype=dtype)
    inputs[which][0, 121, 1, 5] = bad
    out, workspace = run(built, *inputs)
    assert_close(out, GQA_ATTN.model()(*inputs), BY_DTYPE[dtype])
    assert torch.isfinite(out[0, :121]).all()
    assert not finished(workspace, 2, 150).all()


@pytest.mark.parametrize(("dtype", "fast"), [("float16", False), ("bfloat16", False), ("float32", True)])
def test_logits_beyond_the_shifts(builds: Builds, dtype: str, fast: bool) -> None:
    """Where floats are more than one apart a shift cannot stand for the maximum."""
    built = builds.start(Wanted("gqa_attn", "hopper", dtype, 64, fast=fast)).result()
    q, k, v = GQA_ATTN.make_inputs(1, 150, 150, 1, 1, 64, dtype=dtype)
    inputs = [(q.float() * 4096).to(q.dtype), (k.float() * 8192).to(k.dtype), v]
    out, workspace = run(built, *inputs)
    assert_close(out, GQA_ATTN.model()(*inputs), BY_DTYPE[dtype])
    assert not finished(workspace, 1, 150).all()


@pytest.mark.parametrize("variant", ["hopper", "tensor"])
@pytest.mark.parametrize(("package", "dtype"), [("gqa_attn", "float32"), ("fp8_attn", "int8")])
def test_every_order_of_threads_gives_the_same(
    builds: Builds, package: str, dtype: str, variant: str
) -> None:
    """Bitwise: races would show, and so would a block that depends on how many there are."""
    built = builds.start(Wanted(package, variant, dtype, 128)).result()
    if package == "gqa_attn":
        inputs = GQA_ATTN.make_inputs(2, 200, 200, 1, 1, 128, dtype=dtype)
    else:
        inputs = FP8_ATTN.make_inputs(2, 200, 1, 128, dtype=dtype)
    want, _ = run(built, *inputs)
    for seed in range(2, 7):
        out, _ = run(built, *inputs, seed=seed, processors=seed % 4 + 1)
        assert_same(out, want)


CHECKED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from emulation import run
from kernels.problem import find_problem
problem = find_problem(sys.argv[3])
shape = [int(each) for each in sys.argv[4].split()]
inputs = problem.make_inputs(*shape, dtype=sys.argv[5])
out, _ = run(Path(sys.argv[2]), *inputs)
worst = (out - problem.oracle(*inputs)).abs().max().item()
assert worst < (1e-2 if out.dtype.itemsize == 2 else 1e-5), worst
"""

# package, variant, dtype, head_dim, group size, the shape up to head_dim
IN_BOUNDS = {
    "gqa_hopper": ("gqa_attn", "hopper", "float32", 128, 4, "1 70 70 4 1"),
    "gqa_hopper_bfloat16": ("gqa_attn", "hopper", "bfloat16", 72, 2, "1 130 40 2 1"),
    "gqa_hopper_float16": ("gqa_attn", "hopper", "float16", 63, 3, "1 110 110 3 1"),
    "gqa_tensor": ("gqa_attn", "tensor", "float32", 36, 2, "1 70 90 2 1"),
    "gqa_tensor_one_step": ("gqa_attn", "tensor", "float32", 36, 2, "1 30 30 2 1"),
    "gqa_portable": ("gqa_attn", "portable", "float32", 33, 2, "2 40 40 4 2"),
    "gqa_short": ("gqa_attn", "portable", "float32", 32, 4, "1 75 75 8 2"),
    "fp8_hopper": ("fp8_attn", "hopper", "int8", 37, 1, "1 70 2"),
    "fp8_hopper_float8": ("fp8_attn", "hopper", "float8_e4m3fn", 160, 1, "1 70 1"),
    "fp8_tensor_long": ("fp8_attn", "tensor", "int8", 72, 1, "1 259 1"),
}


def checked_library(name: str) -> Wanted:
    *words, _ = IN_BOUNDS.get(name, IN_BOUNDS["gqa_hopper"])
    return Wanted(*words, spoiled="" if name in IN_BOUNDS else name, checked=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*IN_BOUNDS, "past_the_end"])
def test_accesses_are_in_bounds_and_aligned(builds: Builds, name: str) -> None:
    """With the compiler's sanitizers in the kernel, and in torch's allocations around the tensors."""
    library = address_sanitizer()
    if not library:
        pytest.skip("the C++ compiler has no AddressSanitizer")
    package, _, dtype, head_dim, _, shape = IN_BOUNDS.get(name, IN_BOUNDS["gqa_hopper"])
    built = builds.start(checked_library(name)).result()
    tests = Path(__file__).resolve().parent
    command = [sys.executable, "-W", "ignore", "-c", CHECKED, str(tests), str(built)]
    command += [package, f"{shape} {head_dim}", dtype]
    # Stacks of coroutines are not what the sanitizer expects of a stack.
    options = "detect_leaks=0:detect_stack_use_after_return=0:use_sigaltstack=0"
    environment = {**os.environ, "LD_PRELOAD": library, "ASAN_OPTIONS": options}
    done = subprocess.run(
        command, cwd=tests.parent, capture_output=True, text=True, timeout=300, env=environment
    )
    assert (done.returncode == 0) == (name != "past_the_end"), done.stderr[-3000:]
    if name == "past_the_end":
        assert "heap-buffer-overflow" in done.stderr


SPOILED = {
    "no_wait_for_v": {"    ptx::barrier_wait(smem.full_bar(v_place.buffer), v_place.parity);\n": ""},
    "no_wait_for_products": {
        "    ptx::wgmma_wait<(Consumer::PROMOTE ? 1 : Consumer::COLUMN_BLOCKS)>();\n": "",
    },
    "k_given_back_early": {
        "    c.issue_scores(q_address, tile_address + k_place.buffer * Smem::BUFFER_BYTES);\n": (
            "    c.issue_scores(q_address, tile_address + k_place.buffer * Smem::BUFFER_BYTES);\n"
            "    release(smem.empty_bar(k_place.buffer));\n"
        ),
        "    c.take_scores();\n    release(smem.empty_bar(k_place.buffer));\n": "    c.take_scores();\n",
    },
    "never_given_back": {"    release(smem.empty_bar(v_place.buffer));\n": ""},
    "rows_of_k_not_swizzled": {"(chunk % 16 / 2 ^ row % 8) * 16": "(chunk % 16 / 2) * 16"},
    "past_the_end": {"seqlen_k - tile * BLOCK_N;": "seqlen_k + 8 - tile * BLOCK_N;"},
    "one_key_too_many": {"min(row / GROUP_SIZE + 1, arguments": "min(row / GROUP_SIZE + 2, arguments"},
}

JUDGE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from emulation import run
from fp8_attn import PROBLEM
inputs = PROBLEM.make_inputs(1, 700, 1, 128)
out, _ = run(Path(sys.argv[2]), *inputs, processors=1)
worst = (out - PROBLEM.oracle(*inputs)).abs().max().item()
sys.exit(not worst < 1e-5)
"""


def spoiled_library(name: str) -> Wanted:
    return Wanted("fp8_attn", "hopper", "int8", 128, spoiled="" if name == "as_it_is" else name)


@pytest.mark.parametrize("name", ["as_it_is", *(name for name in SPOILED if name != "past_the_end")])
def test_the_emulator_sees_what_is_wrong(builds: Builds, name: str) -> None:
    """Each defect shows as a wrong result, or as a message on the way to an end."""
    built = builds.start(spoiled_library(name)).result()
    tests = Path(__file__).resolve().parent
    command = [sys.executable, "-W", "ignore", "-c", JUDGE, str(tests), str(built)]
    done = subprocess.run(command, cwd=tests.parent, capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0) == (name == "as_it_is"), done.stderr
    if name == "never_given_back":
        assert "every thread waits for another" in done.stderr


AHEAD = {
    "test_gqa_attn": gqa_library,
    "test_small_values": gqa_library,
    "test_fp8_attn": fp8_library,
    "test_accesses_are_in_bounds_and_aligned": checked_library,
    "test_the_emulator_sees_what_is_wrong": spoiled_library,
}
