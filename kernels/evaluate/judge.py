"""One evaluation from beginning to end: workers, trials, times, measures, lint, verdict.

Everything found is data (trials, findings, samples) and the verdict is a function of
that data (:mod:`kernels.evaluate.verdict`). A part that cannot be measured here is left
out with the reason. Whatever happens, the workers are ended and their folders removed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels.evaluate.environment import describe_environment
from kernels.evaluate.evaluation import Evaluation, Finding, Phase, TimingSection, TrialResult
from kernels.evaluate.measures.parts import Measures
from kernels.evaluate.options import Options
from kernels.evaluate.outcome import failure_finding, reference_finding
from kernels.evaluate.result import Environment
from kernels.evaluate.sides import CandidateFailed, ReferenceFailed
from kernels.evaluate.status import Status
from kernels.evaluate.subject import Target, Unusable
from kernels.evaluate.trials import Trials
from kernels.evaluate.verdict import FAILURE, decide
from kernels.evaluate.workers.exchange import Malformed
from kernels.evaluate.workers.isolation import Limits, Worker, WorkerFailed, private_folder

__all__ = ["evaluate", "unusable"]

_PROBE = "import torch; x = torch.ones(8, device='cuda'); assert float((x + x).sum()) == 16"
_PROBE_SECONDS = 120
_PROBES = 3
_PROBE_PAUSE_SECONDS = 2.0


def evaluate(
    target: Target, options: Options, progress: Callable[[str], None] = lambda words: None
) -> Evaluation:
    """Judge ``target``. Raises only what is the caller's own: ``KeyboardInterrupt``, a bug."""
    run = _Run(target, options, progress)
    with contextlib.ExitStack() as stack:
        try:
            run.everything(stack)
        except ReferenceFailed as error:
            run.findings.append(reference_finding(error.failure, options.device))
        except CandidateFailed as error:
            run.findings.append(failure_finding(error.stage, error.failure))
            if error.failure.kind != "error" or "cuda" in str(error.failure.reply).lower():
                run.prove_device()
        except Malformed as error:
            run.findings.append(_tool_finding(f"the reference's worker sent {error}"))
        except OSError as error:
            run.findings.append(_tool_finding(f"{type(error).__name__}: {error}"))
    run.lint()
    return run.evaluation()


def unusable(error: Unusable, options: Options) -> Evaluation:
    """The evaluation of a subject that no process was started for."""
    finding = Finding(
        FAILURE, "violation", "subject", str(error), evidence={"status": error.status.value, "kind": "text"}
    )
    run = _Run(Target(error.subject), options, lambda words: None)
    run.findings.append(finding)
    return run.evaluation()


class _Run:
    """What one evaluation has gathered so far."""

    def __init__(self, target: Target, options: Options, progress: Callable[[str], None]) -> None:
        self.target, self.options, self._progress = target, options, progress
        self.environment = _environment(options)
        self.phases: list[Phase] = []
        self.results: list[TrialResult] = []
        self.findings: list[Finding] = []
        self.skipped: dict[str, str] = {}
        self.timing: TimingSection | None = None
        self.gradients = ""
        self.trials: Trials | None = None
        self.measures = Measures(progress)

    def everything(self, stack: contextlib.ExitStack) -> None:
        options = self.options
        limits = Limits.of_this_machine(options.time_limit)
        if options.memory_bytes:
            limits = Limits(options.time_limit, options.memory_bytes)

        def start(role: str) -> Worker:
            folder = stack.enter_context(private_folder())
            worker = Worker(role, folder, limits, options.device, options.threads)
            stack.callback(worker.close)
            return worker

        reference, candidate = start("reference"), start("candidate")
        with self._phase("start"):
            for worker in (reference, candidate):
                try:
                    worker.started()
                except WorkerFailed as failure:
                    raise OSError(f"the {worker.role}'s worker {failure.detail}") from failure
        trials = self.trials = Trials(
            self.target, options, reference, candidate, lambda: start("reference"), skipped=self.skipped
        )
        with self._phase("load the reference"):
            trials.open()
        with self._phase("load the candidate"):
            trials.open_candidate()
        with self._phase("correctness"):
            for result in trials.run():
                self._progress(f"trial {result.name}")
                self.results.append(result)
        if not all(result.passed for result in self.results):
            self.skipped["timing"] = "the outputs are wrong"
            return
        with self._phase("gradients"):
            self.gradients = self.measures.gradients(trials)
        if "timing" in options.parts:
            with self._phase("timing"):
                self._time(trials)
        with self._phase("measures"):
            self.findings += self.measures.run(trials, self.timing, options, self.skipped)

    def _time(self, trials: Trials) -> None:
        assert trials.default is not None
        rounds: Any
        if self.options.device == "cuda":
            from kernels.evaluate.rounds_cuda import CudaRounds

            rounds = CudaRounds(trials, trials.default, progress=self._progress)
        else:
            from kernels.evaluate.rounds import Rounds

            rounds = Rounds(trials, trials.default, progress=self._progress)
        try:
            self.timing = rounds.run()
        finally:
            self.results += rounds.results
            self.findings += rounds.findings

    def prove_device(self) -> None:
        """After a candidate died on CUDA: a fresh process must find the device fit for the next one."""
        if self.options.device != "cuda":
            return
        if self.trials is not None:
            # One that ran out of memory lives on and holds it.
            self.trials.candidate.close()
        why = ""
        for attempt in range(_PROBES):
            # The driver takes a moment to free what a killed process held.
            time.sleep(_PROBE_PAUSE_SECONDS * attempt)
            try:
                done = subprocess.run(
                    [sys.executable, "-c", _PROBE],
                    capture_output=True,
                    text=True,
                    timeout=_PROBE_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                why = f"no answer within {_PROBE_SECONDS} s"
                continue
            if done.returncode == 0:
                return
            words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            why = next((line for line in reversed(words) if "Error" in line), words[-1])
        self.findings.append(_tool_finding(f"the device does not work after the candidate: {why}"))

    def lint(self) -> None:
        if "lint" not in self.options.parts:
            return
        from kernels.evaluate.lint import lint_sources

        self.findings += lint_sources(self.target.subject.candidate)

    def evaluation(self) -> Evaluation:
        trials = self.trials
        findings = (*self.findings, *(trials.notes if trials else ()))
        decision = decide(self.results, findings)
        found = Evaluation(
            status=decision.status.value,
            reason=decision.reason,
            layer=decision.layer,
            subject=self.target.subject,
            device=self.options.device,
            seed=self.options.seed,
            environment=self.environment,
            options=self.options.as_json(),
            phases=tuple(self.phases),
            trials=tuple(self.results),
            deterministic=trials.deterministic if trials else None,
            gradients=self.gradients,
            weights=trials.weights if trials else "",
            findings=findings,
            timing=self.timing,
            skipped=dict(self.skipped),
        )
        found = self.measures.into(found)
        return replace(found, log=trials.candidate.log()) if trials else found

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._progress(name)
        start = time.monotonic()
        detail = ""
        try:
            yield
        except (ReferenceFailed, CandidateFailed) as error:
            detail = str(error)
            raise
        finally:
            self.phases.append(Phase(name, round(time.monotonic() - start, 3), detail))


def _tool_finding(message: str) -> Finding:
    evidence: Mapping[str, Any] = {"status": Status.TOOL_ERROR.value, "kind": "judge"}
    return Finding(FAILURE, "violation", "judge", message, evidence=evidence)


def _environment(options: Options) -> Environment:
    threads = torch.get_num_threads()
    try:
        found = describe_environment(options.device, options.command)
    finally:
        torch.set_num_threads(threads)
    return replace(found, threads=options.threads)
