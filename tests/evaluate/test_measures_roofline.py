"""Is a time placed right against the ceilings, and is a floor never above what an honest kernel can do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.evaluate.evaluation import Ceilings
from kernels.evaluate.measures import ceilings as measuring
from kernels.evaluate.measures import roofline
from kernels.evaluate.measures.roofline import PACKAGE, TORCH, MachineCeilings, count, floor_us, place
from kernels.evaluate.unavailable import Unavailable

# Round numbers in the size of a large GPU.
GPU = MachineCeilings(
    device="a GPU",
    date="2026-01-01",
    tflops={"float32": 50.0, "bfloat16": 800.0, "float8_e4m3fn": 1500.0},
    gbps=4000.0,
    launch_us=1.0,
    cache_gbps=8000.0,
    cache_bytes=50_000_000,
    bound_tflops=2000.0,
    bound_gbps=4800.0,
    bound_cache_gbps=33_000.0,
)


def test_the_limit_is_the_longest_of_three() -> None:
    memory = place(10**6, 400_000_000, PACKAGE, "float32", 200.0, GPU)
    assert (memory.limit, memory.limit_us, memory.share) == ("memory", pytest.approx(100), pytest.approx(0.5))
    assert memory.achieved_gbps == pytest.approx(2000)
    compute = place(10**10, 1000, PACKAGE, "float32", 400.0, GPU)
    assert (compute.limit, compute.limit_us) == ("compute", pytest.approx(200))
    assert compute.achieved_tflops == pytest.approx(25)
    assert place(10**10, 1000, PACKAGE, "bfloat16", 400.0, GPU).limit_us == pytest.approx(12.5)
    launch = place(100, 100, PACKAGE, "float32", 2.5, GPU)
    assert (launch.limit, launch.share) == ("launch", pytest.approx(0.4))


def test_data_that_fits_the_cache_is_held_against_the_cache_when_warm() -> None:
    warm = place(0, 40_000_000, PACKAGE, "float32", 10.0, GPU, cache="warm")
    cold = place(0, 40_000_000, PACKAGE, "float32", 10.0, GPU, cache="cold")
    large = place(0, 80_000_000, PACKAGE, "float32", 50.0, GPU, cache="warm")
    assert (warm.limit_us, cold.limit_us) == (pytest.approx(5), pytest.approx(10))
    assert large.limit_us == pytest.approx(20)


def test_a_dtype_without_a_unit_of_its_own_is_held_against_the_one_that_serves_it() -> None:
    assert place(10**10, 8, PACKAGE, "float8_e5m2", 9.0, GPU).limit_us == pytest.approx(10**10 / 1500e6)
    assert place(10**10, 8, PACKAGE, "int64", 300.0, GPU).limit_us == pytest.approx(200)


def test_a_count_of_the_reference_proves_nothing() -> None:
    """A clever program may do a thousandth of the reference's work, and read none of its inputs."""
    counted = place(10**13, 10**9, TORCH, "float32", 1.0, GPU, written_bytes=4)
    assert counted.floor_us < 1e-3
    stated = place(10**13, 10**9, PACKAGE, "float32", 1.0, GPU)
    assert stated.floor_us > 1000


def test_the_floor_takes_rates_that_nothing_passes() -> None:
    # Compute: the higher of the bound and twice the measured best, at any precision.
    assert floor_us(3 * 10**12, 0, GPU) == pytest.approx(3e12 / 3000e6)
    # In the cache: all bytes at the cache's bound. Beyond it: only the excess, at the bus's bound.
    assert floor_us(0, 33_000_000, GPU) == pytest.approx(1.0)
    assert floor_us(0, 50_000_000 + 800_000_000, GPU) == pytest.approx(100.0)
    # An honest kernel at the datasheet's limits is above it.
    assert floor_us(0, 400_000_000, GPU) < 400_000_000 / 4800e3


def test_what_is_not_known_gives_no_floor() -> None:
    plain = Ceilings("x", "", {"float32": 1.0}, 1.0, 1.0)
    assert floor_us(10**15, 10**12, plain) == 0
    unknown = MachineCeilings("x", "", {"float32": 1.0}, 1.0, 1.0)
    assert floor_us(10**15, 10**12, unknown) == 0


def test_bounds_of_a_gpu_come_from_its_clocks_and_widths() -> None:
    # An H200: 132 multiprocessors, 1980 MHz, 6144 bits of memory at 3201 MHz.
    operations, memory, cache = measuring.cuda_bounds(132, (9, 0), 1980, 3201, 6144)
    assert operations > 1979  # the datasheet's 8-bit rate, TFLOP/s
    assert 4800 < memory < 5000  # the datasheet says 4.8 TB/s
    assert cache == pytest.approx(132 * 1980 * 128 / 1e3)
    assert measuring.cuda_bounds(132, (99, 0), 1980, 3201, 6144)[0] == 0
    assert measuring.cuda_bounds(132, (9, 0), 0, 0, 0) == (0, 0, 0)


def test_bounds_of_a_cpu_are_above_what_it_measures() -> None:
    cores = len(os.sched_getaffinity(0))
    plain, bandwidth = measuring.cpu_bounds(1, set())
    assert plain == pytest.approx(cores * 7 * 256 / 1e3)
    assert measuring.cpu_bounds(1, {"avx512f"})[0] == 2 * plain
    assert bandwidth > 500


# -- counting ----------------------------------------------------------------------------------


def test_products_are_counted_and_each_byte_once() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(30, 20))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ self.weight.t())

    flops, least_bytes, by = count(Model(), [torch.randn(10, 20)])
    assert (flops, by) == (2 * 10 * 20 * 30, TORCH)
    assert least_bytes == 4 * (10 * 20 + 30 * 20 + 10 * 30)


def test_where_torch_knows_nothing_the_count_is_zero() -> None:
    x = torch.randn(100)
    assert count(lambda x: x.exp(), [x]) == (0, 800, TORCH)
    assert count(lambda x: x.add_(1), [x])[1] == 400  # an output that is the input moves no bytes of its own


# -- measuring ---------------------------------------------------------------------------------


def _stored(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": "x", "date": "2026-01-01", "tflops": {"float32": 1.0}, "gbps": 10.0, "launch_us": 1.0,
        "cache_gbps": 20.0, "cache_bytes": 0,
        "bound_tflops": 5.0, "bound_gbps": 0.0, "bound_cache_gbps": 90.0,
    }  # fmt: skip
    return found | changes


def test_ceilings_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(device: str) -> dict[str, Any]:
        asked.append(device)
        return _stored()

    monkeypatch.setattr(roofline, "_measure", measure)
    first = roofline.ceilings("cpu", str(tmp_path))
    assert roofline.ceilings("cpu", str(tmp_path)) == first
    assert (asked, first.gbps, first.bound_cache_gbps) == (["cpu"], 10.0, 90.0)
    # A damaged file is measured anew, and so is another number of threads.
    (file,) = (tmp_path / "ceilings").iterdir()
    file.write_text(json.dumps(_stored(gbps=0)))
    assert roofline.ceilings("cpu", str(tmp_path)) == first
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    roofline.ceilings("cpu", str(tmp_path))
    assert asked == ["cpu"] * 3


def test_measured_again_the_better_of_each_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first measurement shared the machine with others, the second was unlucky with one rate."""
    answers = [
        _stored(gbps=3.0, launch_us=9.0, tflops={"float32": 2.0}),
        _stored(tflops={"float32": 1.0, "float64": 0.5}),
    ]
    monkeypatch.setattr(roofline, "_measure", lambda device: answers.pop(0))
    assert roofline.ceilings("cpu", str(tmp_path)).gbps == 3.0
    found = roofline.ceilings("cpu", str(tmp_path), again=True)
    assert (found.gbps, found.launch_us, found.tflops) == (10.0, 1.0, {"float32": 2.0, "float64": 0.5})
    assert roofline.ceilings("cpu", str(tmp_path)) == found


def test_another_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="supported: 'cpu', 'cuda'"):
        roofline.ceilings("tpu", str(tmp_path))


def test_a_measurement_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'RuntimeError: no such device' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(Unavailable, match="measuring cpu failed: RuntimeError: no such device"):
        roofline.ceilings("cpu", str(tmp_path))
    assert not (tmp_path / "ceilings").exists()


@pytest.mark.slow
def test_this_cpu_is_measured_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the package is found wherever one stands
    found = roofline.ceilings("cpu", str(tmp_path))
    assert found.tflops["float32"] > 0 and found.tflops["float64"] > 0
    assert found.cache_gbps >= found.gbps > 0.1
    assert 0 < found.launch_us < 1000
    assert found.bound_tflops > max(found.tflops.values()) and found.bound_cache_gbps > found.cache_gbps


@pytest.mark.gpu
def test_this_gpu_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = roofline.ceilings("cuda", str(tmp_path))
    assert found.tflops["bfloat16"] > found.tflops["float32"] > 1
    assert found.cache_gbps > found.gbps > 100
    assert 0.3 < found.launch_us < 20
    assert found.bound_gbps == 0 or found.bound_gbps > found.gbps
    assert found.bound_tflops == 0 or found.bound_tflops > max(found.tflops.values())
