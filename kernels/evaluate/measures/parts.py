"""What is measured beside correctness and time; each part by its own module, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels.evaluate.evaluation import (
    Evaluation,
    Finding,
    Launch,
    Memory,
    Roofline,
    TimingSection,
)
from kernels.evaluate.options import Options
from kernels.evaluate.rules import CANDIDATE, floor_finding
from kernels.evaluate.sides import CandidateFailed, ReferenceFailed
from kernels.evaluate.trials import Trials
from kernels.evaluate.workers.exchange import Malformed

__all__ = ["Measures"]

_GRADIENT_SHARE = 1e-3


class Measures:
    """Runs the parts and keeps what they found; ``progress`` is told which."""

    def __init__(self, progress: Callable[[str], None] = lambda words: None) -> None:
        self._progress = progress
        self._found: dict[str, Any] = {}

    def into(self, evaluation: Evaluation) -> Evaluation:
        """``evaluation`` with everything found."""
        return replace(evaluation, **self._found)

    def gradients(self, trials: Trials) -> str:
        """How the candidate's gradients compare: reported, never a reason to fail."""
        seed = trials.fresh_seed()
        default = trials.draw("gradients", "default", 0)
        if default is None:
            return "not applicable"
        trials.ask_candidate(
            "gradients", "load", folder=str(trials.candidate.folder), first=0, values=[default.written]
        )
        try:
            name = f"g{seed}"
            reply = trials.ask_reference(
                "gradients", folder=str(trials.reference.folder), name=name, seed=seed
            )
            expected = trials.take_reference(reply["gradients"])
        except ReferenceFailed as error:
            if error.failure.kind != "error":
                raise
            return f"not applicable: the reference raises {error.failure.detail}"
        if not expected:
            return "not applicable"
        folder = str(trials.candidate.folder)
        try:
            reply = trials.ask_candidate("gradients", "gradients", folder=folder, name=name, set=0, seed=seed)
            return _gradient_words(trials.take(reply["gradients"]), expected)
        except CandidateFailed as error:
            if error.failure.kind != "error":
                raise
            return f"missing: {error.failure.detail[:160]}"
        except (Malformed, KeyError, AttributeError, TypeError) as error:
            return f"missing: the answer cannot be read: {error}"

    def run(
        self, trials: Trials, timing: TimingSection | None, options: Options, skipped: dict[str, str]
    ) -> list[Finding]:
        """All parts that were asked for. Returns the findings; raises what ends the candidate."""
        for part, measure in (("memory", self._memory), ("launches", self._launches)):
            if part not in options.parts:
                continue
            self._progress(f"measures: {part}")
            try:
                measure(trials, skipped)
            except CandidateFailed as error:
                if error.failure.kind != "error":
                    raise
                skipped[part] = error.failure.detail
            except (KeyError, TypeError, ValueError) as error:
                skipped[part] = f"the candidate's process answered with something else: {error}"
        findings = []
        if "roofline" in options.parts and timing is not None:
            self._progress("measures: roofline")
            findings = self._roofline(trials, timing, options, skipped)
        from kernels.evaluate.measures.tools import run_tools

        self._found.update(run_tools(trials, options, skipped, self._progress))
        return findings

    def _memory(self, trials: Trials, skipped: dict[str, str]) -> None:
        found = dict(trials.ask_candidate("memory", "memory", set=0)["memory"])
        direct = found.pop("direct_bytes")
        if direct is None:
            skipped["memory taken directly"] = "others took or gave back memory of this GPU meanwhile"
        self._found["memory"] = Memory(
            direct_bytes=None if direct is None else int(direct),
            **{name: int(value) for name, value in found.items()},
        )

    def _launches(self, trials: Trials, skipped: dict[str, str]) -> None:
        if trials.options.device != "cuda":
            skipped["launches"] = "the CPU keeps no records of launches"
            return
        reply = trials.ask_candidate("launches", "launches", set=0)
        self._found["launches"] = tuple(
            Launch(
                str(one["kernel"]),
                int(one["count"]),
                tuple(float(each) for each in one["each_us"]),
                tuple(int(size) for size in one["grid"]),
                tuple(int(size) for size in one["block"]),
            )
            for one in reply["launches"]
        )

    def _roofline(
        self, trials: Trials, timing: TimingSection, options: Options, skipped: dict[str, str]
    ) -> list[Finding]:
        from kernels.evaluate.measures import roofline
        from kernels.evaluate.unavailable import Unavailable
        from kernels.paths import cache_directory

        row = _best_row(timing)
        if row is None:
            skipped["roofline"] = "the candidate has no time"
            return []
        try:
            counted = trials.ask_reference("count")
            # Both workers are stopped meanwhile: the ceilings are the machine's.
            trials.reference.pause()
            on_cuda = options.device == "cuda"
            device = f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu"
            dtype = _main_dtype(timing.inputs)
            own = trials.default is None or trials.default.facts["returns_inputs"]

            def place(ceilings: roofline.MachineCeilings) -> Roofline:
                return roofline.place(
                    int(counted["flops"]),
                    int(counted["least_bytes"]),
                    counted["by"],
                    dtype,
                    row,
                    ceilings,
                    cache="warm",
                    written_bytes=0 if own else trials.output_bytes,
                )

            placed = place(roofline.ceilings(device, cache_directory()))
            if placed.share > 1:  # better than the machine was seen to do: it may have been busy then
                placed = place(roofline.ceilings(device, cache_directory(), again=True))
        except ReferenceFailed as error:
            if error.failure.kind != "error":
                raise
            skipped["roofline"] = error.failure.detail
            return []
        except Unavailable as error:
            skipped["roofline"] = str(error)
            return []
        self._found["roofline"] = placed
        return [*filter(None, [floor_finding(placed.time_us, placed.floor_us)])]


def _best_row(timing: TimingSection) -> float | None:
    times = [
        row.median_us
        for row in timing.rows
        if row.name == CANDIDATE and row.median_us is not None and row.mode in ("eager", "graph")
    ]
    return min(times, default=None)


def _main_dtype(words: tuple[str, ...]) -> str:
    """The dtype of the first tensor among the inputs."""
    return next((word.partition("[")[0] for word in words if "[" in word and word[0] != "["), "float32")


def _gradient_words(got: Any, expected: Mapping[str, torch.Tensor]) -> str:
    if not isinstance(got, Mapping) or not got:
        return "missing"
    missing = sorted(name for name in expected if name.startswith("input") and name not in got)
    if missing:
        return f"missing: {', '.join(missing)}"
    for name, theirs in expected.items():
        ours = got.get(name)
        if ours is None:
            continue  # parameters may be called otherwise
        if not isinstance(ours, torch.Tensor) or ours.shape != theirs.shape:
            return f"different: {name} has another shape"
        difference = (ours.double() - theirs.double()).abs()
        worst = difference.max().item() if difference.numel() else 0.0
        scale = theirs.double().abs().max().item() if theirs.numel() else 0.0
        if not worst <= _GRADIENT_SHARE * scale + 1e-6:
            return f"different: {name} by up to {worst:.3g}, where the largest is {scale:.3g}"
    return "same"
