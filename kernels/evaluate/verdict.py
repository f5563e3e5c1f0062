"""The status, from the raw data alone: the same data give the same verdict, today and offline.

Order of precedence: what the judge or the reference could not do; the first trial that
failed; what ended the candidate; a rule it broke while it was timed; a certain lint
violation; else a pass. A pass needs trials that passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernels.evaluate.evaluation import Finding, TrialResult
from kernels.evaluate.status import Status

__all__ = ["FAILURE", "Decision", "decide"]

# The rule of a finding that says what ended the evaluation; its evidence holds the status.
FAILURE = "failure"
_NOT_ITS_FAULT = (Status.TOOL_ERROR, Status.INVALID_REFERENCE, Status.INVALID_CANDIDATE)
_CHEATS = ("type", "alias", "mutation", "late", "order")


class Decision(NamedTuple):
    """A status with its one-line reason and the part that decided; both empty for a pass."""

    status: Status
    reason: str
    layer: str


def decide(trials: Sequence[TrialResult], findings: Sequence[Finding]) -> Decision:
    """The verdict on ``trials`` and ``findings``, in the order they happened."""
    violations = [finding for finding in findings if finding.severity == "violation"]
    failures = [finding for finding in violations if finding.rule == FAILURE]
    for finding in failures:
        if _status(finding) in _NOT_ITS_FAULT:
            return Decision(_status(finding), finding.message, finding.layer)
    wrong = next((trial for trial in trials if not trial.passed), None)
    if wrong is not None:
        return _of_trial(wrong, trials)
    for finding in failures:
        return Decision(_status(finding), finding.message, finding.layer)
    dynamic = [finding for finding in violations if finding.rule != FAILURE and finding.layer != "lint"]
    for finding in [*dynamic, *(found for found in violations if found.layer == "lint")]:
        return Decision(Status.CHEAT, f"{finding.rule}: {finding.message}", finding.layer)
    if not any(trial.passed for trial in trials):
        return Decision(Status.TOOL_ERROR, "no trial was run", "judge")
    return Decision(Status.PASS, "", "")


def _of_trial(wrong: TrialResult, trials: Sequence[TrialResult]) -> Decision:
    reason = f"{wrong.name}: {wrong.reason}"
    if wrong.layer in _CHEATS:
        return Decision(Status.CHEAT, f"{wrong.layer}: {reason}", wrong.layer)
    # The same inputs, and another time the answer was right.
    others = [
        trial
        for trial in trials
        if (trial.kind, trial.seed, trial.inputs) == (wrong.kind, wrong.seed, wrong.inputs)
        and trial.name.partition(", again")[0] == wrong.name.partition(", again")[0]
    ]
    if any(trial.passed for trial in others):
        return Decision(Status.NONDETERMINISTIC, reason, wrong.layer)
    return Decision(Status.WRONG_OUTPUT, reason, wrong.layer)


def _status(finding: Finding) -> Status:
    return Status(finding.evidence["status"])
