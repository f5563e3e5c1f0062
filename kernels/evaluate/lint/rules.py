"""Every rule of the lint, in one table: its id, how severe, what it sees, and why that matters.

A violation decides the status of a candidate, so a rule is one only where the text alone
proves that the candidate does what no kernel needs. What may be honest is a note.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTE", "RULES", "VIOLATION", "Rule", "rule"]

VIOLATION = "violation"
NOTE = "note"


@dataclass(frozen=True)
class Rule:
    """One thing the lint looks for. ``severity`` is ``"violation"`` or ``"note"``."""

    id: str
    severity: str
    what: str
    why: str


RULES = (
    # -- what no kernel needs ------------------------------------------------------------------
    Rule(
        "patched-clock",
        VIOLATION,
        "replaces a clock, a CUDA event or a synchronisation",
        "a time taken with it is not a time",
    ),
    Rule(
        "patched-check",
        VIOLATION,
        "replaces a function or kernel that compares, copies or sends results, or a builtin",
        "what is reported through it is not what was computed",
    ),
    Rule(
        "frames",
        VIOLATION,
        "takes the stack frames of its callers, or traces them",
        "they hold the variables of whoever judges",
    ),
    Rule(
        "garbage-collector",
        VIOLATION,
        "asks the garbage collector for objects it was not given",
        "that is how an expected output is hunted for",
    ),
    Rule(
        "process-memory",
        VIOLATION,
        "reads or writes the memory of a process from outside the language",
        "memory that was not passed in is not an input",
    ),
    Rule(
        "other-processes",
        VIOLATION,
        "looks through the processes of the machine",
        "what they were started with and hold open is not an input",
    ),
    Rule(
        "judge-modules",
        VIOLATION,
        "imports or looks up the modules of the judge",
        "a candidate is given its inputs and nothing else",
    ),
    Rule(
        "interpreter-memory",
        VIOLATION,
        "turns id() of an object into a pointer",
        "it reaches into objects behind the interpreter's back",
    ),
    Rule(
        "descriptors",
        VIOLATION,
        "writes to, replaces or searches file descriptors it did not open",
        "they belong to the process that runs the candidate",
    ),
    Rule(
        "ends-process",
        VIOLATION,
        "ends or signals a process",
        "a candidate returns or raises; it does not end its judge",
    ),
    Rule(
        "precision-switch",
        VIOLATION,
        "lowers the precision of float32 for the whole process",
        "the problem's dtype is part of the problem",
    ),
    Rule(
        "determinism-switch",
        VIOLATION,
        "switches deterministic algorithms off for the whole process",
        "the judge checks that equal inputs give equal outputs",
    ),
    Rule(
        "cached-output",
        VIOLATION,
        "returns the output of an earlier call instead of computing it",
        "the time of a look-up is not the time of the problem",
    ),
    # -- what may be honest, and is worth knowing ---------------------------------------------
    Rule(
        "pointer-key",
        NOTE,
        "keys a cache by the address of a tensor",
        "an address says nothing about what is there now",
    ),
    Rule(
        "kept-output",
        NOTE,
        "returns a tensor that the module keeps",
        "the next call may overwrite what the caller still holds",
    ),
    Rule(
        "patched-library",
        NOTE,
        "assigns to an attribute of a module of torch, or registers a kernel in its name",
        "other code in the process sees the change",
    ),
    Rule(
        "global-setting",
        NOTE,
        "changes a setting for the whole process",
        "the result depends on state outside the model",
    ),
    Rule(
        "dynamic-code",
        NOTE,
        "runs code that is made at run time",
        "this lint cannot read it",
    ),
    Rule(
        "module-table",
        NOTE,
        "looks through the table of loaded modules",
        "it leads to modules that are not the candidate's",
    ),
    Rule(
        "shared-files",
        NOTE,
        "looks for files in shared memory",
        "other processes keep their tensors there",
    ),
    Rule(
        "raw-memory",
        NOTE,
        "reads or writes memory by address through ctypes",
        "nothing checks that the address is of an input or output",
    ),
    Rule(
        "thread",
        NOTE,
        "starts a thread or a process",
        "work that outlives the call is not in its time",
    ),
    Rule(
        "side-stream",
        NOTE,
        "uses a CUDA stream of its own",
        "work on it must be waited for on the current stream",
    ),
    Rule(
        "default-stream",
        NOTE,
        "launches on the default stream instead of the current one",
        "inputs written on the current stream may not be there yet",
    ),
    Rule(
        "launch-check",
        NOTE,
        "launches kernels and never asks for a launch error",
        "a launch that failed leaves the output as it was",
    ),
    Rule(
        "silent-fallback",
        NOTE,
        "catches any error of its fast path and goes on with another",
        "what was timed may not be the kernel",
    ),
    Rule(
        "lower-precision",
        NOTE,
        "computes in a shorter type than float32",
        "the error has to be looked at, not assumed",
    ),
    Rule(
        "fast-math",
        NOTE,
        "compiles with a flag that relaxes floating-point rules",
        "denormals, infinities and NaN may come out differently",
    ),
    Rule(
        "library-call",
        NOTE,
        "leaves whole operations to a library",
        "says which part of the problem is the candidate's own",
    ),
    Rule(
        "atomics",
        NOTE,
        "updates memory with atomics",
        "the order of floating-point additions differs from run to run",
    ),
    Rule(
        "device-memory",
        NOTE,
        "allocates device memory behind torch and never frees it",
        "it grows with every call",
    ),
    Rule(
        "sleep",
        NOTE,
        "sleeps or waits on purpose",
        "a kernel has nothing to wait for",
    ),
    Rule(
        "process-exit",
        NOTE,
        "may end the process where an error could be raised",
        "one failed call takes the whole program with it",
    ),
    Rule(
        "unread",
        NOTE,
        "could not be read",
        "nothing can be said about a text that does not parse",
    ),
)

_BY_ID = {one.id: one for one in RULES}


def rule(name: str) -> Rule:
    """The rule called ``name``; raises ``KeyError`` when there is none."""
    return _BY_ID[name]
