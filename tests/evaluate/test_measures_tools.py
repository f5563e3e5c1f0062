"""Do we read NVIDIA's tools right: formats from small texts, cuobjdump on what nvcc compiles here."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.errors import ToolchainError
from kernels.evaluate.measures import counters, launches, machine_code, nvidia_tools, sanitizer
from kernels.evaluate.unavailable import Unavailable
from kernels.toolchain import find_cuda

# -- finding and running ----------------------------------------------------------------------


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_missing_tool_names_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(Unavailable) as caught:
        nvidia_tools.find("no-such-tool", "install it")
    assert (caught.value.fix, "no-such-tool is not here" in caught.value.reason) == ("install it", True)
    assert str(caught.value).endswith("; fix: install it")


def test_the_cuda_home_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home/bin", "path"):
        (tmp_path / name).mkdir(parents=True)
        _script(tmp_path / name / "ncu", "")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert nvidia_tools.find("ncu", "") == str(tmp_path / "path" / "ncu")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert nvidia_tools.find("ncu", "") == str(tmp_path / "home" / "bin" / "ncu")


def test_a_tool_that_does_not_end_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    endless = _script(
        tmp_path / "endless",
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(child)!r}, 'w').write(str(child.pid))\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)\n",
    )
    finished = nvidia_tools.run([endless], 3.0)
    assert (finished.code, finished.output) == (None, "begun\n")
    state = Path(f"/proc/{child.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_names_are_made_readable_where_they_can_be() -> None:
    names = nvidia_tools.demangle(["_ZN4ours3addILi128EEEvPf", "plain_c"])
    assert names["plain_c"] == "plain_c"
    if shutil.which("c++filt") or shutil.which("cu++filt"):
        assert names["_ZN4ours3addILi128EEEvPf"] == "void ours::add<128>(float*)"


# -- machine code ------------------------------------------------------------------------------

RESOURCES = """
Fatbin elf code:
================
arch = sm_80
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0
 Function _Z1fPf:
  REG:10 STACK:0 SHARED:512 LOCAL:0 CONSTANT[0]:360 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin elf code:
================
arch = sm_90a

Resource usage:
 Common:
  GLOBAL:0
 Function _Z1fPf:
  REG:168 STACK:64 SHARED:1024 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

SASS = """
\tcode for sm_90a
\t.target\tsm_90a

\t\tFunction : _Z1fPf
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                    /* 0x00000a00ff017b82 */
                                                                             /* 0x000fe20000000800 */
        /*0010*/                   HFMA2.MMA R2, -RZ, RZ, 0, 2.3e-07 ;       /* 0x00000004ff027435 */
        /*0020*/              @!P0 STL.64 [R1+0x8], R2 ;                     /* 0x0000080201007387 */
        /*0030*/               @P1 LDL R0, [R1+0x8] ;                        /* 0x0000080001007983 */
        /*0040*/                   WARPGROUP.ARRIVE ;                        /* 0x0000000000007948 */
        /*0050*/                   HGMMA.64x64x16.F32 R24, gdesc[UR4], !UPT ; /* 0x00e0000004187df0 */
        /*0060*/              @UP0 HGMMA.64x64x16.F32 R24, gdesc[UR8], R24 ; /* 0x00e0000008187df0 */
        /*0070*/                   HMMA.16816.F32 R4, R8, R2, R4 ;           /* 0x000000020804723c */
        /*0080*/                   UTCQMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ; /* 0x0000000000007df0 */
        /*0090*/                   EXIT ;                                    /* 0x000000000000794d */
        /*00a0*/                   BRA 0xa0;                                 /* 0xfffffff000007947 */
        /*00b0*/                   NOP;                                      /* 0x0000000000007918 */
"""


def test_resources_are_read_by_architecture() -> None:
    assert machine_code.parse_resources(RESOURCES) == {
        ("sm_80", "_Z1fPf"): machine_code.Resources(10, 512, 0),
        ("sm_90a", "_Z1fPf"): machine_code.Resources(168, 1024, 64),
    }


def test_instructions_are_counted_by_what_they_are() -> None:
    code = machine_code.parse_sass(SASS)["sm_90a", "_Z1fPf"]
    assert code.instructions == 11  # the NOP that fills up is none
    assert (code.local_stores, code.local_loads) == (1, 1)
    # HFMA2.MMA is an ordinary instruction in spite of its name.
    assert code.tensor_core == {"HGMMA": 2, "HMMA": 1, "UTCQMMA": 1}


SOURCE = """
#include <mma.h>
using namespace nvcuda;
namespace ours {
template <int N> __global__ void turn(float* x) {
  __shared__ float s[N];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[N - 1 - threadIdx.x];
}
}
template __global__ void ours::turn<128>(float*);
extern "C" __global__ void product(const half* a, const half* b, float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
extern "C" __global__ void indexed(float* x, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = x[i];
  for (int j = 0; j < n; j++) a[(j * 7) % 64] += x[j];
  float t = 0;
  for (int i = 0; i < 64; i++) t += a[i] * i;
  x[0] = t;
}
"""


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        nvcc = os.path.join(find_cuda().home, "bin", "nvcc")
        nvidia_tools.find("cuobjdump", "")
        nvidia_tools.find("nvdisasm", "")
    except (ToolchainError, Unavailable) as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("cubin")
    (folder / "source.cu").write_text(SOURCE)
    command = [nvcc, "-cubin", "-arch=sm_80", "source.cu", "-o", "source.cubin"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(folder / "source.cubin")


def test_a_compiled_kernel_is_described(cubin: str) -> None:
    found = {kernel.kernel: kernel for kernel in machine_code.read([cubin])}
    turn = next(kernel for name, kernel in found.items() if "turn" in name)
    assert (turn.library, turn.arch, turn.shared_bytes, turn.stack_bytes) == ("source.cubin", "sm_80", 512, 0)
    assert (turn.spill_stores, turn.spill_loads, turn.tensor_core) == (0, 0, {})
    assert turn.registers is not None and 1 < turn.registers < 64 and turn.instructions > 5
    assert found["product"].tensor_core["HMMA"] >= 2
    indexed = found["indexed"]
    assert indexed.stack_bytes == 256 and indexed.spill_stores and indexed.spill_loads


def test_what_holds_no_device_code_adds_nothing(cubin: str) -> None:
    import torch

    torch_library = str(Path(torch.__file__).parent / "lib" / "libshm.so")
    assert machine_code.read([torch_library]) == ()
    with pytest.raises(FileNotFoundError):
        machine_code.read([cubin + ".missing"])


# -- counters ----------------------------------------------------------------------------------


def _raw_page() -> str:
    stall = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    names = [
        "ID", "Process ID", "Process Name", "Kernel Name", "Block Size", "Grid Size",
        "gpu__time_duration.sum",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
        "lts__t_sector_hit_rate.pct",
        stall.format("long_scoreboard"), stall.format("barrier"), stall.format("selected"),
        "smsp__average_warps_issue_stalled_barrier_not_issued_per_issue_active.ratio",
    ]  # fmt: skip
    units = ["", "", "", "", "", "", "nsecond", "%", "%", "%", "%", "inst", "inst", "inst", "inst"]
    start = ["1", "python3", "void f<float, 4>(float *)", "(128, 1, 1)", "(10, 1, 1)"]
    rows = [
        ["0", *start, "1,000", "50", "20", "90", "10", "3", "1", "1", "9"],
        ["1", *start, "3,000", "70", "40", "50", "30", "3", "1", "1", "9"],
        ["2", "1", "python3", "g", "(1, 1, 1)", "(1, 1, 1)", "500", "1", "2", "3", "n/a", "0", "2", "1", "0"],
    ]
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in [names, units, *rows])
    return f"==PROF== Connected to process 1\nhello\n{table}\n==PROF== Disconnected from process 1\n"


def test_counters_are_weighted_by_time_and_stay_with_their_kernel() -> None:
    f, g = counters.parse(_raw_page())
    assert (f.kernel, f.time_us, f.time_share) == ("void f<float, 4>(float *)", 2.0, pytest.approx(4 / 4.5))
    assert f.sm_sol_pct == pytest.approx(0.25 * 50 + 0.75 * 70)
    assert f.memory_sol_pct == pytest.approx(0.25 * 20 + 0.75 * 40)
    assert f.occupancy_pct == pytest.approx(60)
    assert f.l2_hit_pct == pytest.approx(25)
    assert f.stalls_pct == {"long_scoreboard": pytest.approx(75), "barrier": pytest.approx(25)}
    assert (g.kernel, g.time_us, g.stalls_pct) == ("g", 0.5, {"barrier": pytest.approx(100)})
    assert math.isnan(g.l2_hit_pct)
    assert f.time_share + g.time_share == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.\n",
            "may not read the GPU's counters",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled", ""),
        ("", "saw no kernel", ""),
    ],
)
def test_counters_that_cannot_be_read_say_why(text: str, reason: str, fix: str) -> None:
    with pytest.raises(Unavailable) as caught:
        counters.parse(text)
    assert reason in caught.value.reason and fix in caught.value.fix


def _fake_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, log: str, printed: str) -> None:
    """A CUDA home whose ``tool`` writes ``log`` to its log file and prints what a program would."""
    (tmp_path / "bin").mkdir()
    _script(
        tmp_path / "bin" / tool,
        "import sys\n"
        f"print({printed!r})\n"
        f"open(sys.argv[sys.argv.index('--log-file') + 1], 'w').write({log!r})\n",
    )
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))


def test_ncu_is_asked_through_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = _raw_page().replace("void f", "void forged")
    _fake_home(tmp_path, monkeypatch, "ncu", _raw_page(), forged)
    assert [found.kernel for found in counters.profile(["program"])] == ["void f<float, 4>(float *)", "g"]


def test_ncu_leaves_the_clocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(command: list[str], seconds: float) -> nvidia_tools.Finished:
        asked.extend(command)
        return nvidia_tools.Finished(0, "", _raw_page())

    monkeypatch.setattr(counters, "find", lambda name, fix: name)
    monkeypatch.setattr(counters, "run", run)
    counters.profile(["program"])
    assert asked[asked.index("--clock-control") + 1] == "none" and asked[-1] == "program"


@pytest.mark.parametrize("cut", ["units", "rows"])
def test_a_table_without_known_units_is_said_to_be_one(cut: str) -> None:
    lines = _raw_page().splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    text = "\n".join(lines[: header + 1] + lines[header + 2 :] if cut == "units" else lines[: header + 1])
    with pytest.raises(Unavailable, match="ncu gives times in"):
        counters.parse(text)


def test_our_own_programs_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = [sys.executable, "-S", "-c", "import kernels.errors; print('found')"]
    assert nvidia_tools.run(command, 60.0).output == "found\n"


# -- sanitizer ---------------------------------------------------------------------------------

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at writes(float *)+0x70
=========     by thread (32,0,0) in block (0,0,0)
=========     Address 0x7f5c00000080 is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce(float *)+0x90
=========     and Read access at reduce(float *)+0xd0 [124 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_a_clean_report_has_no_errors_and_no_excerpt() -> None:
    found = sanitizer.parse(CLEAN + CLEAN, "memcheck")
    assert (found.tool, found.errors, found.excerpt) == ("memcheck", 0, "")


@pytest.mark.parametrize(
    ("text", "tool", "errors", "words"),
    [(OUT_OF_BOUNDS, "memcheck", 2, "out of bounds"), (RACE, "racecheck", 1, "Race reported")],
)
def test_findings_are_counted_and_quoted(text: str, tool: str, errors: int, words: str) -> None:
    found = sanitizer.parse("the program's own line\n" + text, tool)
    assert found.errors == errors
    assert words in found.excerpt and "own line" not in found.excerpt


def test_a_report_without_a_summary_is_no_clean_one() -> None:
    with pytest.raises(Unavailable, match="no summary: Error: Unable to connect"):
        sanitizer.parse("========= COMPUTE-SANITIZER\n========= Error: Unable to connect\n", "memcheck")
    with pytest.raises(ValueError, match="supported: memcheck"):
        sanitizer.run(["program"], "leakcheck")


def test_what_the_program_prints_is_not_the_sanitizers_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_home(tmp_path, monkeypatch, "compute-sanitizer", OUT_OF_BOUNDS, CLEAN)
    assert sanitizer.run(["program"], "memcheck").errors == 2


# -- launches ----------------------------------------------------------------------------------


def test_launches_are_the_gpus_own_rows() -> None:
    shape = {"grid": [10, 1, 1], "block": [128, 1, 1]}
    events = [
        {"cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 30, "args": {}},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 5, "args": {}},
        {"cat": "kernel", "name": "g", "ts": 40, "dur": 2.5, "args": shape},
        {"cat": "kernel", "name": "f", "ts": 10, "dur": 1.5, "args": shape},
        {"cat": "kernel", "name": "f", "ts": 20, "dur": 1.25, "args": shape},
        {"cat": "kernel", "name": "f", "ts": 30, "dur": 9, "args": {"grid": [1, 2, 3], "block": [1, 1, 1]}},
        {"cat": "gpu_memset", "name": "Memset (Device)", "ts": 50, "dur": 0.5, "args": {"bytes": 4}},
        {"cat": "gpu_user_annotation", "name": "range", "ts": 0, "dur": 99, "args": {}},
        {"ph": "M", "name": "process_name"},
    ]
    trace = json.loads(json.dumps({"traceEvents": events}))
    found = launches.from_trace(trace)
    assert [(one.kernel, one.count, one.each_us, one.grid) for one in found] == [
        ("f", 2, (1.5, 1.25), (10, 1, 1)),
        ("f", 1, (9.0,), (1, 2, 3)),
        ("g", 1, (2.5,), (10, 1, 1)),
        ("Memset (Device)", 1, (0.5,), ()),
    ]
    assert found[0].block == (128, 1, 1)


@pytest.mark.gpu
def test_a_calls_kernels_and_copies_are_recorded() -> None:
    import torch

    x = torch.randn(1 << 20, device="cuda")
    y = torch.empty_like(x)

    def call() -> torch.Tensor:
        y.copy_(x)
        return (x + 1) * 2

    found = launches.record(call)
    assert sum(one.count for one in found) == 3
    assert any("Memcpy" in one.kernel for one in found)
    kernels = [one for one in found if one.grid]
    assert sum(one.count for one in kernels) == 2
    assert all(time > 0 for one in found for time in one.each_us)


@pytest.mark.gpu
def test_the_sanitizer_finds_a_write_out_of_bounds(tmp_path: Path) -> None:
    nvcc = os.path.join(find_cuda().home, "bin", "nvcc")
    source = "__global__ void f(float* x) { x[threadIdx.x + (1 << 20)] = 1; }\nint main() { float* x; "
    source += "cudaMalloc(&x, 4); f<<<1, 1>>>(x); return cudaDeviceSynchronize() != cudaSuccess; }\n"
    (tmp_path / "bad.cu").write_text(source)
    command = [nvcc, "-cudart", "static", "bad.cu", "-o", "bad"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    try:
        found = sanitizer.run([str(tmp_path / "bad")], "memcheck")
    except Unavailable as error:
        pytest.skip(str(error))
    assert found.errors >= 1 and "Invalid __global__ write" in found.excerpt
