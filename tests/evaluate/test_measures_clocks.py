"""Is NVML asked right: a small library with its interface, compiled here, and the real one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kernels.evaluate.timing import nvml
from kernels.evaluate.timing.clocks import Sampler
from kernels.evaluate.unavailable import Unavailable

# Two GPUs. The second says nothing of its power, and knows throttling only by its old name.
LIBRARY = r"""
#include <string.h>
static const char *uuids[] = {"GPU-aaaa1111", "GPU-bbbb2222"};
static int calls;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "Not Found"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  if (i > 1) return 6;
  *h = (void *)(long)(i + 1);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char *u, void **h) {
  for (int i = 0; i < 2; i++)
    if (!strcmp(u, uuids[i])) { *h = (void *)(long)(i + 1); return 0; }
  return 6;
}
int nvmlDeviceGetUUID(void *h, char *out, unsigned n) { strncpy(out, uuids[(long)h - 1], n); return 0; }
int nvmlDeviceGetName(void *h, char *out, unsigned n) { strncpy(out, "A GPU", n); return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { strncpy(out, "580.1", n); return 0; }
int nvmlDeviceGetClockInfo(void *h, int kind, unsigned *mhz) {
  *mhz = kind == 1 ? 1000 * (long)h + calls++ : kind == 2 ? 2619 : 0;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void *h, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1980 : 3201; return 0; }
int nvmlDeviceGetMemoryBusWidth(void *h, unsigned *bits) { *bits = 6144; return 0; }
int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *c) { *c = 40 + sensor; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { *mw = 123456; return (long)h == 2 ? 3 : 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *bits) {
  *bits = (long)h == 2 ? 0x1 : 0x4 | 0x40;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) {
  m[0] = 100;
  m[1] = 30;
  m[2] = 70 + calls++ % 2;
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(LIBRARY)
    command = [compiler, "-x", "c", "-shared", "-fPIC", "nvml.c", "-o", "libnvidia-ml.so.1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(folder / "libnvidia-ml.so.1")


@pytest.fixture
def fake(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ctypes.CDLL
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: real(library if "nvidia-ml" in name else name))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("fake")
def test_a_record_follows_the_clocks_until_it_is_stopped() -> None:
    with Sampler(0) as sampler:
        sampler.start()
        time.sleep(0.2)
        record = sampler.stop()
        assert 3 <= len(record.sm_mhz) <= 12  # one every 20 ms, on a machine that may be busy
        assert record.sm_mhz[0] >= 1000 and list(record.sm_mhz) == sorted(set(record.sm_mhz))
        assert set(record.memory_mhz) == {2619} and record.max_sm_mhz == 1980
        assert set(record.temperature_c) == {40} and set(record.power_w) == {123.456}
        assert record.throttled == "software power cap, hardware thermal slowdown"
        sampler.start()  # a second record is a new one
        assert sampler.stop().sm_mhz[0] > record.sm_mhz[-1]


@pytest.mark.usefixtures("fake")
def test_what_a_gpu_does_not_tell_is_left_empty() -> None:
    with Sampler(1) as sampler:
        sampler.start()
        record = sampler.stop()
    assert record.power_w == () and record.throttled == ""
    assert record.sm_mhz[0] >= 2000


@pytest.mark.usefixtures("fake")
def test_start_and_stop_take_turns() -> None:
    with Sampler(0) as sampler:
        with pytest.raises(RuntimeError, match="not running"):
            sampler.stop()
        sampler.start()
        with pytest.raises(RuntimeError, match="already running"):
            sampler.start()


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("visible", "device", "uuid"),
    [
        (None, 1, "GPU-bbbb2222"),
        ("1,0", 0, "GPU-bbbb2222"),
        ("GPU-bbbb2222", 0, "GPU-bbbb2222"),
        ("GPU-bb", 0, "GPU-bbbb2222"),
        ("1", "GPU-aaaa1111", "GPU-aaaa1111"),
    ],
)
def test_a_gpu_is_found_as_cuda_counts(
    visible: str | None, device: int | str, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.identify(device) == ("A GPU", uuid, "580.1")


@pytest.mark.usefixtures("fake")
def test_a_gpu_that_is_not_there_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match=r"does not know GPU 7: Not Found \(6\)"):
        Sampler(7)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(Unavailable, match="shows no GPU 0"):
        Sampler(0)


def test_without_nvml_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvml.ctypes, "CDLL", missing)
    with pytest.raises(Unavailable, match="NVML .* is not here; fix: install the NVIDIA driver"):
        Sampler(0)


def test_throttling_is_named_and_idling_is_none() -> None:
    assert nvml.throttle_names(0x1 | 0x2) == ()
    assert nvml.throttle_names(0x8 | 0x20) == ("hardware slowdown", "software thermal slowdown")


def test_memory_is_watched_by_a_process_of_its_own(library: str) -> None:
    root = Path(nvml.__file__).resolve().parents[2]
    environment = {"LD_LIBRARY_PATH": str(Path(library).parent), "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "kernels.evaluate.timing.nvml", "GPU-aaaa1111"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stdin is not None and watcher.stdout is not None
        assert watcher.stdout.readline() == "watching\n"
        time.sleep(0.1)
        watcher.stdin.close()
        assert watcher.stdout.read().split() == ["70", "71"]
    assert watcher.returncode == 0


@pytest.mark.gpu
def test_the_real_gpu_tells_its_clocks() -> None:
    with Sampler(f"GPU-{torch.cuda.get_device_properties(0).uuid}") as sampler:
        sampler.start()
        x = torch.randn(4096, 4096, device="cuda")
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            x @ x
            torch.cuda.synchronize()
        record = sampler.stop()
    assert len(record.sm_mhz) >= 5
    assert 200 < max(record.sm_mhz) <= record.max_sm_mhz
    assert min(record.memory_mhz) > 200
