"""The GPU's clocks, temperature, power and throttling while something is timed.

A thread asks NVML every 20 ms. It belongs into the judge's process: there, no code
under test can reach it.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

from kernels.evaluate.evaluation import ClockRecord
from kernels.evaluate.timing.nvml import Device, opened, throttle_names
from kernels.evaluate.unavailable import Unavailable

__all__ = ["Sampler"]

_PERIOD_SECONDS = 0.02


class Sampler:
    """Follows one GPU between :meth:`start` and :meth:`stop`; can be started again.

    ``device`` is a CUDA index or a UUID, as :func:`kernels.evaluate.timing.nvml.opened` takes it.
    Raises :class:`Unavailable` when made where NVML is absent or does not know the GPU.
    """

    def __init__(self, device: int | str) -> None:
        self._closing = contextlib.ExitStack()
        self._gpu = self._closing.enter_context(opened(device))
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._taken = _Series()

    def start(self) -> None:
        """Begin a new record. Raises :class:`Unavailable` when the driver does not tell the clocks."""
        if self._thread is not None:
            raise RuntimeError("this Sampler is already running; stop it first")
        self._taken = _Series()
        self._taken.add(self._gpu)
        self._stopped.clear()
        self._thread = threading.Thread(target=self._follow, name="clock sampler", daemon=True)
        self._thread.start()

    def stop(self) -> ClockRecord:
        """End the record and return it: one value of each series every 20 ms."""
        if self._thread is None:
            raise RuntimeError("this Sampler is not running; start it first")
        self._stopped.set()
        self._thread.join()
        self._thread = None
        return self._taken.record(self._gpu)

    def close(self) -> None:
        """Let go of NVML."""
        if self._thread is not None:
            self.stop()
        self._closing.close()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self) -> None:
        while not self._stopped.wait(_PERIOD_SECONDS):
            try:
                self._taken.add(self._gpu)
            except Unavailable as error:  # the GPU fell off the bus: what was seen until then stands
                self._taken.ended = str(error)
                return


class _Series:
    def __init__(self) -> None:
        self.sm: list[int] = []
        self.memory: list[int] = []
        self.temperature: list[int] = []
        self.power: list[float] = []
        self.throttle_bits = 0
        self.ended = ""

    def add(self, gpu: Device) -> None:
        self.sm.append(gpu.sm_mhz())
        self.memory.append(gpu.memory_mhz())
        # Some GPUs tell their clocks and not these; an empty series says so.
        with contextlib.suppress(Unavailable):
            self.temperature.append(gpu.temperature_c())
        with contextlib.suppress(Unavailable):
            self.power.append(gpu.power_w())
        with contextlib.suppress(Unavailable):
            self.throttle_bits |= gpu.throttle_bits()

    def record(self, gpu: Device) -> ClockRecord:
        words = list(throttle_names(self.throttle_bits))
        if self.ended:
            words.append(f"the record ends early: {self.ended}")
        return ClockRecord(
            sm_mhz=tuple(self.sm),
            memory_mhz=tuple(self.memory),
            max_sm_mhz=gpu.max_sm_mhz(),
            temperature_c=tuple(self.temperature),
            power_w=tuple(self.power),
            throttled=", ".join(words),
        )
