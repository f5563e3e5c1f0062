"""Evaluations made up for the tests of the reports, through the dataclasses that are the JSON's schema."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

from kernels.evaluate.evaluation import (
    Ceilings,
    ClockRecord,
    Counters,
    Evaluation,
    Finding,
    KernelCode,
    Launch,
    Log,
    Memory,
    OutputError,
    Phase,
    Roofline,
    Sanitizer,
    Source,
    Subject,
    TimingRow,
    TimingSection,
    TrialResult,
    Verdict,
)
from kernels.evaluate.result import Environment, as_json

__all__ = ["HOSTILE", "cheat", "compile_error", "document", "passing_cpu", "passing_cuda", "wrong_output"]

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m[red]\u202e&amp;\"'"

REFERENCE = '''"""The definition."""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v):
        """Causal attention, row by row."""
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1) @ v
'''

CANDIDATE = '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
__global__ void row_kernel(const float* q, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = q[i] * 2.0f;  // each thread: one element
}
"""


class ModelNew(torch.nn.Module):
    def forward(self, q, k, v):
        out = torch.empty_like(q)
        return row(q, out)
'''


def document(evaluation: Evaluation) -> dict[str, Any]:
    """What a reader of the JSON file gets."""
    return json.loads(json.dumps(as_json(evaluation)))


def _environment(**changes: Any) -> Environment:
    base = Environment(
        device="AMD EPYC 9554, 2 cores",
        driver="",
        cuda="",
        torch="2.14.1",
        python="3.11.7",
        threads=2,
        date="2026-11-30 03:20",
        command="python -m kernels evaluate --reference reference.py --candidate candidate.py",
    )
    return replace(base, **changes)


def _subject(name: str) -> Subject:
    return Subject(
        name=name,
        kind="files",
        reference=(Source("problems/reference.py", "9f" * 32, REFERENCE),),
        candidate=(Source("solutions/candidate.py", "3c" * 32, CANDIDATE),),
    )


def _output(own: float, seed: int, shape: tuple[int, ...] = (2, 80, 8, 32), **changes: Any) -> OutputError:
    reference_error = 2.1e-7 * (1 + seed % 3 / 4)
    total = math.prod(shape)
    base = OutputError(
        path="",
        shape=shape,
        dtype="float32",
        max_abs=own * 1.9e-7,
        mean_abs=own * 2.2e-8,
        max_rel=own * 3e-5,
        mean_rel=own * 2e-7,
        mismatched=0,
        total=total,
        atol=1e-4,
        rtol=1e-4,
        oracle_error=own * reference_error,
        reference_error=reference_error,
        allowed_error=4 * reference_error,
        own_error_units=own,
    )
    return replace(base, **changes)


def _trials() -> tuple[TrialResult, ...]:
    shapes = ((2, 80, 8, 32), (1, 1, 8, 32), (2, 239, 8, 32), (3, 113, 4, 32), (2, 203, 8, 64))
    trials = []
    for number, shape in enumerate(shapes):
        inputs = tuple(f"float32[{', '.join(map(str, shape))}]" for _ in range(3))
        kind = "default" if number == 0 else "jitter"
        outputs = (_output(0.8 + 0.21 * number, number, shape),)
        trials.append(
            TrialResult(f"{kind} {number}", kind, 1000 + number, inputs, True, "", "", number % 2, outputs)
        )
    for kind in ("cast", "timed", "order"):
        inputs = ("float32[2, 80, 8, 32]",) * 3
        outputs = (_output(1.13, 5),)
        trials.append(TrialResult(kind, kind, 2000, inputs, True, outputs=outputs))
    return tuple(trials)


def _row(name: str, mode: str, cache: str, median: float, spread: float, **changes: Any) -> TimingRow:
    """Samples as a GPU gives them: a tight heap with a tail to the right."""
    draw = random.Random(f"{name} {mode} {cache}")
    samples = [median * (1 + spread * draw.gauss(0, 1)) for _ in range(changes.pop("samples", 200))]
    samples[7::40] = [value * (1.05 + draw.random() / 8) for value in samples[7::40]]
    ordered = sorted(samples)
    middle = ordered[len(ordered) // 2]
    base = TimingRow(
        name=name,
        mode=mode,
        cache=cache,
        samples_us=tuple(samples),
        calls_per_sample=20,
        median_us=middle,
        low_us=ordered[int(0.43 * len(ordered))],
        high_us=ordered[int(0.57 * len(ordered))],
        outliers=5,
        outside_us=middle * 1.02,
    )
    return replace(base, **changes)


def _verdict(name: str, mode: str, cache: str, speedup: float) -> Verdict:
    word = "same" if 0.98 < speedup < 1.02 else "faster" if speedup > 1 else "slower"
    return Verdict(name, mode, cache, word, speedup, speedup * 0.985, speedup * 1.015)


def passing_cpu() -> Evaluation:
    """A pass on a CPU: no launches, no roofline, no counters, each with its reason."""
    kinds = (
        ("candidate", 412.0, 0.012),
        ("reference", 655.0, 0.02),
        ("torch.compile of the reference", 418.0, 0.01),
    )
    rows = tuple(_row(name, "eager", "warm", median, spread, samples=60) for name, median, spread in kinds)
    return Evaluation(
        status="PASS",
        reason="",
        layer="",
        subject=_subject("level1/softmax"),
        device="cpu",
        seed=42,
        environment=_environment(),
        options={"trials": 5, "timeout_s": 120},
        phases=(Phase("load", 1.9), Phase("correctness", 3.2), Phase("timing", 6.4, "")),
        trials=_trials(),
        deterministic=True,
        gradients="missing",
        weights="the reference's state_dict was loaded",
        findings=(
            Finding(
                "library-call",
                "note",
                "lint",
                "leaves whole operations to a library: torch.softmax (line 14)",
                "solutions/candidate.py",
                14,
            ),
        ),
        timing=TimingSection(
            inputs=("float32[2, 80, 8, 32]",),
            rows=rows,
            verdicts=(
                _verdict("reference", "eager", "warm", 1.59),
                _verdict("torch.compile of the reference", "eager", "warm", 1.01),
            ),
            fresh_us=(413.0, 415.5, 420.1),
            fresh_ratio=1.01,
        ),
        memory=Memory(491520, 163840, 0, 0, 0),
        skipped={
            "counters": "ncu needs a GPU, and there is none; fix: run on a machine with an NVIDIA GPU",
            "roofline": "no ceilings were measured; fix: python -m kernels roofline --measure",
        },
    )


def passing_cuda() -> Evaluation:
    """A pass on a GPU with every section there is."""
    medians = {
        ("candidate", "graph"): 2.69,
        ("candidate", "eager"): 7.4,
        ("reference", "graph"): 181.0,
        ("reference", "eager"): 412.0,
        ("torch.compile of the reference", "graph"): 31.0,
        ("torch.compile of the reference", "eager"): 58.0,
        ("scaled_dot_product_attention", "graph"): 17.5,
        ("scaled_dot_product_attention", "eager"): 24.4,
    }
    rows, verdicts = [], []
    for (name, mode), median in medians.items():
        for cache, factor in (("warm", 1.0), ("cold", 1.6)):
            rows.append(_row(name, mode, cache, median * factor, 0.004 if mode == "graph" else 0.03))
            if name != "candidate":
                mine = medians["candidate", mode]
                verdicts.append(_verdict(name, mode, cache, median / mine))
    rows.append(_row("candidate", "host", "warm", 2.9, 0.05))
    rows.append(
        TimingRow(
            "another route", "graph", "warm", note="not captured: it synchronises the device in its forward"
        )
    )
    kernel = "void (anonymous namespace)::attention::short_kernel<float, 32, 4>(attention::Params)"
    split = "void attention::split_kernel<float, 32>(float const*, float const*, float*, int, int, int)"
    ceilings = Ceilings(
        "NVIDIA H200", "2026-11-30", {"float32": 54.0, "tf32": 395.0, "bfloat16": 790.0}, 4050.0, 1.6
    )
    base = passing_cpu()
    assert base.timing is not None
    return replace(
        base,
        subject=_subject("gqa_attn"),
        device="cuda",
        environment=_environment(
            device="NVIDIA H200", driver="580.159.04", cuda="13.0", torch="2.11.0+cu130"
        ),
        gradients="same",
        timing=TimingSection(
            inputs=("float32[2, 80, 8, 32]", "float32[2, 80, 2, 32]", "float32[2, 80, 2, 32]"),
            rows=tuple(rows),
            verdicts=tuple(verdicts),
            clocks=ClockRecord((1965, 1980, 1980), (3201,), 1980, (41, 44), (212.0, 305.5), ""),
            fresh_us=(2.7, 2.71),
            fresh_ratio=1.0,
            kernels_seen=2,
            notes=("cold: 50 MB are written between calls, outside the timed window",),
        ),
        memory=Memory(983040, 655360, 40960, 40960, 0),
        launches=(
            Launch(kernel, 1, (2.1,), (80, 2, 1), (128, 1, 1)),
            Launch(split, 2, (0.31, 0.29), (16, 1, 1), (256, 1, 1)),
        ),
        roofline=Roofline(
            flops=13_107_200,
            least_bytes=1_638_400,
            counted_by="problem package",
            time_us=2.69,
            achieved_tflops=4.87,
            achieved_gbps=609.0,
            limit="launch",
            limit_us=1.6,
            share=0.595,
            floor_us=0.404,
            ceilings=ceilings,
        ),
        counters=(
            Counters(
                kernel,
                2.1,
                0.78,
                31.0,
                18.0,
                24.0,
                91.0,
                {
                    "long scoreboard": 34.0,
                    "barrier": 21.0,
                    "wait": 14.0,
                    "math pipe": 9.0,
                    "not selected": 5.0,
                },
            ),
            Counters(split, 0.6, 0.22, 8.0, 41.0, 62.0, 55.0, {"long scoreboard": 58.0, "wait": 12.0}),
        ),
        code=(
            KernelCode(kernel, "gqa_attn.so", "sm_90a", 128, 40960, 0, 0, 0, 2210, {"HMMA": 96}),
            KernelCode(split, "gqa_attn.so", "sm_90a", 32, 0, 0, 16, 24, 310, {}),
        ),
        sanitizer=(
            Sanitizer("memcheck", 0, ""),
            Sanitizer("racecheck", 2, "Race reported between Write access"),
        ),
        skipped={},
    )


def wrong_output() -> Evaluation:
    """Half of the trials wrong, with infinities, a hostile name, and two outputs."""
    base = passing_cpu()
    bad = _output(
        3.1e4,
        1,
        path="[1]",
        mismatched=17,
        max_abs=math.inf,
        first_bad=(0, 3, 7, 31),
        got=math.nan,
        expected=0.25,
    )
    trial = replace(
        base.trials[1],
        passed=False,
        layer="output",
        reason="17 of 40960 elements differ; the first at [0, 3, 7, 31]",
        outputs=(_output(0.9, 2, path="[0]"), bad),
    )
    return replace(
        base,
        status="WRONG_OUTPUT",
        reason="1 of 8 trials disagrees with the reference",
        layer="output",
        trials=(base.trials[0], trial, *base.trials[2:]),
        log=Log("\n".join(f"line {number}" for number in range(40)), 12_345),
    )


def cheat() -> Evaluation:
    """A hostile candidate: markup and escapes in every text that it wrote."""
    base = passing_cpu()
    return replace(
        base,
        status="CHEAT",
        reason=f"rule patched-clock: replaces time.perf_counter {HOSTILE}",
        layer="lint",
        subject=Subject(
            HOSTILE,
            "files",
            base.subject.reference,
            (
                Source(
                    f"{HOSTILE}.py", "00" * 32, f"x = '''{HOSTILE}'''\nimport time\ntime.perf_counter = 0\n"
                ),
            ),
        ),
        trials=tuple(replace(trial, reason=HOSTILE, name=HOSTILE, passed=False) for trial in base.trials[:2]),
        findings=(
            Finding(
                "patched-clock",
                "violation",
                "lint",
                f"replaces {HOSTILE}",
                f"{HOSTILE}.py",
                3,
                {HOSTILE: HOSTILE},
            ),
            Finding("clock", "violation", "clock", HOSTILE),
        ),
        timing=None,
        memory=None,
        log=Log(f"{HOSTILE}\n" * 3, 4096),
        skipped={"timing": f"not timed {HOSTILE}; fix: be honest"},
        phases=(Phase(HOSTILE, 0.1, HOSTILE),),
    )


def compile_error() -> Evaluation:
    """Nothing but the reason: every part that was not reached is None."""
    return Evaluation(
        status="COMPILE_ERROR",
        reason='candidate.py: nvcc refused the source: error: identifier "blockIdx" is undefined',
        layer="build",
        subject=_subject("level1/softmax"),
        device="cuda",
        seed=7,
        environment=_environment(device="NVIDIA H200", driver="580.159.04", cuda="13.0"),
        options={},
        phases=(Phase("load", 71.2, "the compiler's words are in the log"),),
        log=Log('row_kernel.cu(6): error: identifier "blockIdx" is undefined\n1 error detected', 90),
        skipped={"timing": "the candidate was not built"},
    )
