"""Is the memory a call needs counted: on the CPU here, on CUDA where there is one."""

from __future__ import annotations

import gc

import pytest
import torch

from kernels.evaluate.measures import memory
from kernels.evaluate.measures.memory import extra_bytes, storage_bytes

MIB = 1 << 20
GRAIN = 2 * MIB  # what resident memory is exact to, in a process with torch's threads in it


def test_storages_count_once_and_shared_ones_not_at_all() -> None:
    x = torch.zeros(1000)
    model = torch.nn.Linear(10, 10)
    assert storage_bytes(x) == 4000
    assert storage_bytes([x, {"view": x[10:20]}, (x.t(), None, 3)]) == 4000
    assert storage_bytes([x, torch.zeros(5)], besides=[x]) == 20
    assert storage_bytes(model) == 4 * 110
    assert storage_bytes(None) == 0


def test_a_model_may_call_its_own_things_as_torch_does() -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(4))
            self.buffers = {"kept": torch.zeros(8)}

    assert storage_bytes(Named()) == 16


def test_what_a_call_needs_on_the_cpu_is_its_temporaries() -> None:
    x = torch.randn(4 * MIB)  # 16 MiB

    def call() -> torch.Tensor:
        y = x * 2
        z = y + 1  # two of 16 MiB alive
        return z[: MIB // 4].clone()  # 1 MiB

    found = extra_bytes(call, "cpu", x)
    assert (found.input_bytes, found.output_bytes) == (16 * MIB, MIB)
    assert found.allocator_bytes == pytest.approx(32 * MIB, abs=1024)
    assert found.direct_bytes == pytest.approx(32 * MIB, abs=GRAIN)
    assert found.extra_bytes == max(found.allocator_bytes, found.direct_bytes)


def test_a_call_without_temporaries_needs_nothing() -> None:
    x, out = torch.randn(4 * MIB), torch.empty(4 * MIB)
    found = extra_bytes(lambda: torch.mul(x, 2, out=out), "cpu", [x, out])
    assert (found.output_bytes, found.input_bytes) == (0, 32 * MIB)
    assert found.allocator_bytes < 1024
    assert found.direct_bytes < GRAIN


@pytest.mark.parametrize(
    ("gains", "direct"),
    [
        ([0], 0),
        ([64, 0], 0),  # others, once: what calls take is there each time
        ([64, 300, 66, 0], 64),
        ([64, 300, 66, 40], None),  # and no less while no call is made
    ],
)
def test_what_others_take_of_the_gpu_is_not_the_calls(
    gains: list[int], direct: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [gain * MIB for gain in gains]
    monkeypatch.setattr(memory, "_gained", lambda body: left.pop(0))
    assert memory._direct_bytes(lambda: None) == (None if direct is None else direct * MIB)
    assert not left


def test_memory_taken_behind_the_allocator_counts_on_the_cpu() -> None:
    x = torch.randn(10)

    def call() -> torch.Tensor:
        hidden = bytearray(24 * MIB)  # not torch's; zeroed, so touched
        return x + len(hidden)

    found = extra_bytes(call, "cpu", x)
    assert found.allocator_bytes < 1024
    assert found.direct_bytes == pytest.approx(24 * MIB, abs=GRAIN)
    assert found.extra_bytes == found.direct_bytes


def test_a_workspace_that_the_first_call_keeps_counts() -> None:
    kept: list[torch.Tensor] = []
    x = torch.randn(1000)

    def call() -> torch.Tensor:
        if not kept:
            tuned = torch.empty(32 * MIB)  # only the first call, and given back: not counted
            kept.append(torch.empty(8 * MIB))  # 32 MiB
            del tuned
        return x + 1

    found = extra_bytes(call, "cpu", x)
    assert found.allocator_bytes == pytest.approx(32 * MIB, abs=1024)
    kept.clear()


def test_an_output_that_is_an_input_is_no_output() -> None:
    x = torch.zeros(100)
    assert extra_bytes(lambda: x.add_(1), "cpu", [x]).output_bytes == 0


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="supported: 'cpu', 'cuda'"):
        extra_bytes(lambda: None, "meta")


def test_the_calls_own_error_comes_through() -> None:
    def call() -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        extra_bytes(call, "cpu")


# -- CUDA ------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_what_a_call_needs_on_cuda_is_its_temporaries() -> None:
    x = torch.randn(4 * MIB, device="cuda")

    def call() -> torch.Tensor:
        y = x * 2
        z = y + 1
        return z[: MIB // 4].clone()

    found = extra_bytes(call, "cuda", x)
    assert (found.input_bytes, found.output_bytes) == (16 * MIB, MIB)
    assert found.allocator_bytes == 32 * MIB  # at the peak y and z, or z and the output less the output
    assert found.direct_bytes == 0
    assert found.extra_bytes == 32 * MIB


@pytest.mark.gpu
def test_memory_taken_behind_the_allocator_counts_on_cuda() -> None:
    import ctypes

    x = torch.randn(10, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")

    def call() -> torch.Tensor:
        hidden = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(hidden), ctypes.c_size_t(256 * MIB)) == 0
        out = x + 1
        torch.cuda._sleep(2_000_000)  # about a millisecond: what a real kernel would use it for
        torch.cuda.synchronize()
        assert driver.cuMemFree_v2(hidden) == 0
        return out

    gc.collect()
    found = extra_bytes(call, "cuda", x)
    assert found.direct_bytes == pytest.approx(256 * MIB, abs=2 * GRAIN)
    assert found.extra_bytes == found.allocator_bytes + found.direct_bytes
