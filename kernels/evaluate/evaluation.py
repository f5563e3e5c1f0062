"""What an evaluation found, as plain frozen data: the report that is written as JSON.

``kernels.evaluate.result.as_json`` turns an :class:`Evaluation` into the JSON document,
whose keys are the field names below. Times are microseconds and sizes are bytes, and
the field names say so. Raw samples are kept, so that ``python -m kernels verify``
can recompute every figure and the status from the document alone.

A part that was not measured is None, and ``skipped`` says why under the part's name
("counters": "ncu may not read the counters: ... fix: ...").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.evaluate.result import Environment

__all__ = [
    "BUSY",
    "CANDIDATE",
    "CHECKS",
    "CLOCK",
    "FRESH",
    "OFTEN",
    "REPEATED",
    "SCHEMA",
    "Ceilings",
    "ClockBatch",
    "ClockRecord",
    "Counters",
    "Evaluation",
    "Finding",
    "KernelCode",
    "Launch",
    "Log",
    "Memory",
    "OutputError",
    "Phase",
    "Roofline",
    "Sanitizer",
    "Source",
    "Subject",
    "TimingRow",
    "TimingSection",
    "TrialResult",
    "Verdict",
]

SCHEMA = 1

# Names of timing rows.
CANDIDATE = "candidate"
REPEATED = "candidate, repeated content"
# On CUDA: the same after all the batches on it.
OFTEN = "candidate, often repeated content"
CLOCK = "candidate, clock check"
# On CUDA: one pass over content nobody has seen, by the host's clock. On the CPU the row of the
# candidate is that.
FRESH = "candidate, new content"
CHECKS = (FRESH, REPEATED, OFTEN, CLOCK)
# How the note begins that says that its processes did not have the machine to themselves.
BUSY = "the machine was busy"


@dataclass(frozen=True)
class Source:
    """One file that was evaluated: its text, so that the report stands alone, and its digest."""

    path: str
    sha256: str
    text: str


@dataclass(frozen=True)
class Subject:
    """What was judged: ``kind`` is ``"package"`` or ``"files"``; the sources are every file of each side."""

    name: str
    kind: str
    reference: tuple[Source, ...]
    candidate: tuple[Source, ...]


@dataclass(frozen=True)
class Phase:
    """One step of the evaluation and how long it took; ``detail`` is empty when it went well."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class OutputError:
    """How one output tensor differs from the reference, and both from float64.

    ``own_error_units`` is the candidate's largest error against float64 divided by the
    reference's own (None where there is no float64 form). ``first_bad`` is the index of
    the first element out of tolerance in row-major order, with both values.

    Where every element has a bound of its own, because rounding to float32 alone moves some further
    than others, ``bound_at`` is the index of the element that uses most of its bound, and
    ``oracle_error``, ``reference_error`` and ``allowed_error`` are that element's: its error, the
    yardstick there (the larger of the reference's error and what rounding moves), and the
    bound; ``own_error_units`` is in units of that yardstick. Else ``bound_at`` is None, and they are
    the largest of the whole output and its one bound.

    ``beyond`` elements are further from float64 than what nearly all of the reference's are off allows,
    which is ``bulk_error`` for an element near 0; ``beyond_allowed`` may be, since some of the reference's
    are. None where the output has no float64 form or a tolerance that holds for every element.
    """

    path: str  # where in the returned structure: "" for a single tensor, "[1]", "['x']"
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    mismatched: int
    total: int
    atol: float
    rtol: float
    first_bad: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    oracle_error: float | None = None
    reference_error: float | None = None
    allowed_error: float | None = None
    own_error_units: float | None = None
    bound_at: tuple[int, ...] | None = None
    beyond: int | None = None
    beyond_allowed: int | None = None
    bulk_error: float | None = None


@dataclass(frozen=True)
class TrialResult:
    """One call on fresh inputs.

    ``kind`` is ``"default"`` (get_inputs as it is), ``"jitter"`` (other shapes), ``"cast"``
    (every tensor cast to float32), ``"timed"`` (an output of a timed call), or
    ``"order"`` (inputs written late on the current stream). ``redrawn`` counts draws
    on which the reference itself failed. ``layer`` names what rejected the trial
    ("output", "mutation", "alias", "type", "order", "late", ...) and is empty when it passed.
    """

    name: str
    kind: str
    seed: int
    inputs: tuple[str, ...]  # "float32[2, 80, 8, 32]", "int 3"
    passed: bool
    layer: str = ""
    reason: str = ""
    redrawn: int = 0
    outputs: tuple[OutputError, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One thing seen: a lint finding or a rule of the judge.

    ``severity`` is ``"violation"`` (decides the status) or ``"note"``. ``layer`` is
    ``"lint"`` or the part of the judge that saw it. ``line`` is 1-based, 0 when there is none.
    """

    rule: str
    severity: str
    layer: str
    message: str
    path: str = ""
    line: int = 0
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TimingRow:
    """One way to the result, in one ``mode``, beside its neighbours in the same interleaved run.

    ``name``: "candidate", "reference", "torch.compile of the reference", or a library route.
    ``mode``: "eager", "graph" (CUDA graph replay) or "host" (what a call costs the calling thread).
    ``cache``: "warm" or "cold" L2 on CUDA; "warm" on the CPU.
    ``samples_us`` are all of them, in the order taken, microseconds a call; none is removed.
    ``low_us`` and ``high_us`` bound the median with ``confidence`` (0.95).
    ``outliers`` counts samples further than 3 scaled MADs from the median.
    ``outside_us`` is the time a call as seen by the judge's own clock around the same samples; None
    where new content is written within the request.
    """

    name: str
    mode: str
    cache: str
    samples_us: tuple[float, ...] = ()
    calls_per_sample: int = 1
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    confidence: float = 0.95
    outliers: int = 0
    outside_us: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """``name`` compared with the candidate: that is "faster", "same" or "slower", or it is "unclear".

    ``speedup`` is the median of the other's samples over the candidate's, pair by pair; ``low`` and ``high``
    bound it.
    """

    name: str
    mode: str
    cache: str
    verdict: str
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class ClockBatch:
    """One long batch of the candidate's calls by both clocks, in microseconds a call.

    ``inside_us`` is the worker's own account and ``outside_us`` the judge's, less a round trip. Of the
    latter its threads and the judge's together waited ``waited_us`` for a processor (None where the
    kernel keeps no record), and its threads together ran for ``cpu_us``.
    """

    inside_us: float
    outside_us: float
    waited_us: float | None = None
    cpu_us: float = 0.0


@dataclass(frozen=True)
class ClockRecord:
    """The GPU while it was timed: clocks in MHz, temperature, power, and why it was held back ("" if not)."""

    sm_mhz: tuple[int, ...]
    memory_mhz: tuple[int, ...]
    max_sm_mhz: int
    temperature_c: tuple[int, ...]
    power_w: tuple[float, ...]
    throttled: str


@dataclass(frozen=True)
class TimingSection:
    """All times of one input. ``fresh_ratio``: the time on content never seen over that on seen content.

    ``batches`` is what the rule "clock" goes by, where ``processors`` threads can run at once.
    """

    inputs: tuple[str, ...]
    rows: tuple[TimingRow, ...]
    verdicts: tuple[Verdict, ...]
    clocks: ClockRecord | None = None
    fresh_us: tuple[float, ...] = ()
    fresh_ratio: float | None = None
    kernels_seen: int | None = None
    notes: tuple[str, ...] = ()
    batches: tuple[ClockBatch, ...] = ()
    processors: int = 1


@dataclass(frozen=True)
class Memory:
    """Bytes a call needs beyond its inputs and outputs.

    ``allocator_bytes`` came from torch's allocator, ``direct_bytes`` from the device
    behind its back (``cudaMalloc``; None where others took memory of it meanwhile) and, on the CPU,
    is the growth of resident memory.
    """

    input_bytes: int
    output_bytes: int
    extra_bytes: int
    allocator_bytes: int
    direct_bytes: int | None


@dataclass(frozen=True)
class Launch:
    """One kernel as the GPU recorded it: launches in one call and the time of each, microseconds."""

    kernel: str
    count: int
    each_us: tuple[float, ...]
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ceilings:
    """What this machine was measured to reach; ``flops`` is by dtype, in TFLOP/s; bandwidth in GB/s."""

    device: str
    date: str
    tflops: Mapping[str, float]
    gbps: float
    launch_us: float


@dataclass(frozen=True)
class Roofline:
    """The case against the machine's ceilings.

    ``floor_us`` is the least time any correct program needs: the larger of bytes over
    bandwidth and operations over the highest rate of any unit. ``limit`` is "memory",
    "compute" or "launch"; ``share`` is limit_us divided by the measured time.
    """

    flops: int
    least_bytes: int
    counted_by: str  # "problem package" or "torch's flop counter" or ...
    time_us: float
    achieved_tflops: float
    achieved_gbps: float
    limit: str
    limit_us: float
    share: float
    floor_us: float
    ceilings: Ceilings


@dataclass(frozen=True)
class Counters:
    """Nsight Compute's figures of one kernel; percentages are of that kernel's own time, never summed."""

    kernel: str
    time_us: float
    time_share: float
    sm_sol_pct: float
    memory_sol_pct: float
    occupancy_pct: float
    l2_hit_pct: float
    stalls_pct: Mapping[str, float]


@dataclass(frozen=True)
class KernelCode:
    """What the machine code of one kernel says. ``tensor_core`` counts HMMA, HGMMA, IMMA, ... by name."""

    kernel: str
    library: str
    arch: str
    registers: int | None
    shared_bytes: int | None
    stack_bytes: int | None
    spill_stores: int | None
    spill_loads: int | None
    instructions: int
    tensor_core: Mapping[str, int]


@dataclass(frozen=True)
class Sanitizer:
    """compute-sanitizer's findings by tool ("memcheck", "racecheck"); ``errors`` 0 when clean."""

    tool: str
    errors: int
    excerpt: str


@dataclass(frozen=True)
class Log:
    """What the candidate printed: never parsed, cut to its head and tail."""

    text: str
    total_bytes: int


@dataclass(frozen=True)
class Evaluation:
    """Everything about one judgement. ``status`` is a :class:`kernels.evaluate.status.Status` value."""

    status: str
    reason: str  # one line, empty for a pass
    layer: str  # the part that decided, empty for a pass
    subject: Subject
    device: str  # "cpu" or "cuda"
    seed: int
    environment: Environment
    options: Mapping[str, Any]
    phases: tuple[Phase, ...] = ()
    trials: tuple[TrialResult, ...] = ()
    deterministic: bool | None = None
    gradients: str = ""  # "same", "missing", "different: ...", "not applicable"
    weights: str = ""  # how the candidate got the reference's parameters
    findings: tuple[Finding, ...] = ()
    timing: TimingSection | None = None
    memory: Memory | None = None
    launches: tuple[Launch, ...] | None = None
    roofline: Roofline | None = None
    counters: tuple[Counters, ...] | None = None
    code: tuple[KernelCode, ...] | None = None
    sanitizer: tuple[Sanitizer, ...] | None = None
    log: Log = Log("", 0)
    skipped: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA
