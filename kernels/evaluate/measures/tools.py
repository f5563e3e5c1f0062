"""Profilers and disassemblers that start a program of their own: counters, machine code, sanitizer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from kernels.evaluate.options import Options
from kernels.evaluate.sides import CandidateFailed
from kernels.evaluate.trials import Trials
from kernels.evaluate.unavailable import Unavailable
from kernels.evaluate.workers.replay import DESCRIPTION

__all__ = ["run_tools"]


def run_tools(
    trials: Trials,
    options: Options,
    skipped: dict[str, str],
    progress: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """The fields of an evaluation that outside tools fill in; ``skipped`` says why one is left out."""
    if options.device != "cuda":
        for part in ("counters", "code"):
            if part in options.parts:
                skipped[part] = "only kernels on a GPU have them"
        if options.sanitizer:
            skipped["sanitizer"] = "compute-sanitizer is for kernels on a GPU"
        return {}
    found: dict[str, Any] = {}
    if "code" in options.parts:
        progress("measures: machine code")
        _code(trials, skipped, found)
    if "counters" in options.parts or options.sanitizer:
        try:
            command = _replay_command(trials)
        except CandidateFailed as error:
            if error.failure.kind != "error":
                raise
            asked = ["counters"] if "counters" in options.parts else []
            asked += [f"sanitizer {tool}" for tool in options.sanitizer]
            skipped.update(dict.fromkeys(asked, error.failure.detail))
            return found
        # Nothing else may run on the device meanwhile.
        trials.reference.pause()
        trials.candidate.pause()
        if "counters" in options.parts:
            progress("measures: counters")
            _counters(command, options, skipped, found)
        if options.sanitizer:
            progress("measures: sanitizer")
        _sanitizer(command, options, skipped, found)
    return found


def _code(trials: Trials, skipped: dict[str, str], found: dict[str, Any]) -> None:
    from kernels.evaluate.measures import machine_code

    try:
        reply = trials.ask_candidate("code", "libraries")
        paths = [str(path) for path in reply["libraries"]]
        if not paths:
            skipped["code"] = "the candidate has loaded no library that was compiled for it"
            return
        found["code"] = machine_code.read(paths)
    except CandidateFailed as error:
        if error.failure.kind != "error":
            raise
        skipped["code"] = error.failure.detail
    except (Unavailable, OSError, KeyError, TypeError) as error:
        skipped["code"] = str(error)


def _counters(command: list[str], options: Options, skipped: dict[str, str], found: dict[str, Any]) -> None:
    from kernels.evaluate.measures import counters

    try:
        found["counters"] = counters.profile(command, seconds=options.time_limit)
    except Unavailable as error:
        skipped["counters"] = str(error)


def _sanitizer(command: list[str], options: Options, skipped: dict[str, str], found: dict[str, Any]) -> None:
    from kernels.evaluate.measures import sanitizer

    reports = []
    for tool in options.sanitizer:
        try:
            reports.append(sanitizer.run(command, tool, seconds=options.time_limit))
        except Unavailable as error:
            skipped[f"sanitizer {tool}"] = str(error)
    if reports:
        found["sanitizer"] = tuple(reports)


def _replay_command(trials: Trials) -> list[str]:
    """Write down the last call in the candidate's folder; the command that repeats it without a judge."""
    folder = trials.candidate.folder
    reply = trials.ask_candidate("profile", "save", folder=str(folder), set=0)
    words = {**trials.replay_words, "inputs": reply["inputs"]}
    (folder / DESCRIPTION).write_text(json.dumps(words), encoding="utf-8")
    return [sys.executable, "-m", "kernels.evaluate.workers.entry", "--replay", str(folder)]
