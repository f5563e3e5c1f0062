"""Names of architectures, and a look at the GPU that does not wake it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from kernels import device


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("9.0a", "sm_90a"),
        ("sm_90a", "sm_90a"),
        ("90a", "sm_90a"),
        ("9.0", "sm_90a"),
        ("90", "sm_90a"),
        ("8.0", "sm_80"),
        ("sm_80", "sm_80"),
        ("compute_86", "sm_86"),
        ("12.0", "sm_120"),
        ("120", "sm_120"),
        ("10.0a", "sm_100a"),
        (" 10.3F ", "sm_103f"),
    ],
)
def test_cuda_arch_name(text: str, name: str) -> None:
    assert device.cuda_arch_name(text) == name


@pytest.mark.parametrize("text", ["", "hopper", "9", "sm_9", "9.0b", "1234", "8.0+PTX"])
def test_what_is_no_architecture(text: str) -> None:
    with pytest.raises(ValueError, match="no CUDA architecture; write it as 9.0a"):
        device.cuda_arch_name(text)


@pytest.mark.parametrize(
    ("machine", "capability", "arch"),
    [
        ("x86_64", "AVX2", "x86-64-v3"),
        ("x86_64", "AVX512", "x86-64-v4"),
        ("x86_64", "DEFAULT", "x86-64"),
        ("x86_64", "NO AVX", "x86-64"),
        ("aarch64", "SVE256", "aarch64"),
        ("arm64", "DEFAULT", "aarch64"),
    ],
)
def test_cpu_arch(monkeypatch: pytest.MonkeyPatch, machine: str, capability: str, arch: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    uname = device.os.uname()
    monkeypatch.setattr(device.os, "uname", lambda: type(uname)((*uname[:4], machine)))
    assert device.cpu_arch() == arch


def test_cuda_arch_of_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    device._cuda_arch.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [(9, 0), (8, 6)][index])
    assert (device.cuda_arch(0), device.cuda_arch(1)) == ("sm_90a", "sm_86")
    device._cuda_arch.cache_clear()


class Nvml:
    """A management library with an H200 and an A100."""

    capabilities = {0: (9, 0), 1: (8, 0), b"GPU-8000": (8, 0)}

    def __init__(self, init: int = 0) -> None:
        self.init = init
        self.shut = 0

    def nvmlInit_v2(self) -> int:
        return self.init

    def nvmlShutdown(self) -> int:
        self.shut += 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return self._handle(index.value, handle)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        return self._handle(uuid, handle)

    def _handle(self, which: Any, handle: Any) -> int:
        self.which = which
        return 0 if which in self.capabilities else 2

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self.capabilities[self.which]
        return 0


@pytest.mark.parametrize(
    ("visible", "arch"),
    [
        (None, "sm_90a"),
        ("1,0", "sm_80"),
        ("GPU-8000", "sm_80"),
        ("", None),
        ("-1", None),
        ("7", None),
        ("MIG-1", None),
    ],
)
def test_peek_asks_nvml_and_wakes_nothing(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, arch: str | None
) -> None:
    nvml = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device.peek_cuda_arch() == arch
    assert nvml.shut == (0 if visible in ("", "-1") else 1)
    assert not torch.cuda.is_initialized()


def test_peek_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert device.peek_cuda_arch() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml(init=9))
    assert device.peek_cuda_arch() is None


def test_describe_the_cpu() -> None:
    spec = device.describe("cpu")
    assert (spec.device, spec.arch, spec.units) == ("cpu", device.cpu_arch(), torch.get_num_threads())
    assert spec.name and spec.memory_bytes > 1 << 20
    assert repr(spec).startswith("DeviceSpec(arch=")


@pytest.mark.gpu
def test_describe_the_gpu() -> None:
    spec = device.describe("cuda", 0)
    assert spec.arch == device.cuda_arch(0) and spec.units > 0 and spec.memory_bytes > 1 << 30
