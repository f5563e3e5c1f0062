"""What is seen of a candidate once, before the rounds: what it does unasked, and whose memory it returns."""

from __future__ import annotations

import time

from kernels.evaluate.evaluation import Finding
from kernels.evaluate.trials import Drawn, Trials
from kernels.evaluate.workers.isolation import Worker

__all__ = ["background_finding", "held_finding"]

_SETTLE_SECONDS = 0.25
_IDLE_SECONDS = 0.2
_IDLE_SHARE = 0.25
# A compiler's pool may still be starting: it is quiet in the end, and stays so for this many stretches.
_QUIET_STRETCHES = 3
_QUIET_WITHIN_SECONDS = 20.0


def background_finding(trials: Trials) -> Finding | None:
    """Rule "background": it works while nothing is asked of it, and so outside every timed call."""
    trials.ask_candidate("time", "ping")
    # Threads of a library may wait for more work by spinning, for a while.
    time.sleep(_SETTLE_SECONDS)
    most, quiet, begun = _idle_share(trials.candidate), 0, time.monotonic()
    while most > _IDLE_SHARE and quiet < _QUIET_STRETCHES:
        if time.monotonic() - begun > _QUIET_WITHIN_SECONDS:
            message = (
                f"used up to {most:.2f} processors with nothing to do, "
                f"and was not quiet for {_QUIET_WITHIN_SECONDS:g} s"
            )
            evidence = {"processors": most, "waited_s": _QUIET_WITHIN_SECONDS}
            return Finding("background", "violation", "background", message, evidence=evidence)
        used = _idle_share(trials.candidate)
        most, quiet = max(most, used), quiet + 1 if used <= _IDLE_SHARE else 0
    return None


def _idle_share(candidate: Worker) -> float:
    """How many processors the candidate uses, for a moment, with nothing asked of it."""
    before = candidate.cpu_seconds()
    time.sleep(_IDLE_SECONDS)
    return (candidate.cpu_seconds() - before) / _IDLE_SECONDS


def held_finding(trials: Trials, default: Drawn) -> Finding | None:
    """Rule "alias" over many calls: no output is in the memory of one that is still held.

    But for those that are parameters or buffers of the reference as well.
    """
    if default.facts["returns_inputs"]:
        return None
    shared = trials.ask_candidate("time", "hold", excused=default.facts["returns_state"]).get("shared")
    if shared is None:
        return None
    message = f"call {str(shared)[:20]} of a row returned memory of an earlier output that was still held"
    return Finding("alias", "violation", "alias", message)
