"""What an evaluation can come to: one word, documented, the same in every report."""

from __future__ import annotations

from enum import Enum

__all__ = ["MEANING", "Status"]


class Status(str, Enum):
    """The verdict on a candidate. Only ``PASS`` exits with code 0."""

    PASS = "PASS"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    WRONG_OUTPUT = "WRONG_OUTPUT"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    CHEAT = "CHEAT"
    INVALID_CANDIDATE = "INVALID_CANDIDATE"
    INVALID_REFERENCE = "INVALID_REFERENCE"
    TOOL_ERROR = "TOOL_ERROR"


MEANING = {
    Status.PASS: "every trial agreed with the reference and no rule was broken",
    Status.COMPILE_ERROR: "a compiler refused the candidate's source",
    Status.RUNTIME_ERROR: "the candidate raised, crashed, or ended its process",
    Status.WRONG_OUTPUT: "an output differs from the reference in value, shape, dtype or device",
    Status.NONDETERMINISTIC: "the same input gave different outputs that are not all within tolerance",
    Status.TIMEOUT: "the candidate did not finish within its time limit",
    Status.OUT_OF_MEMORY: "the candidate asked for more memory than there is",
    Status.CHEAT: "the candidate broke a rule of the judge; the rule and the evidence are in the report",
    Status.INVALID_CANDIDATE: "the candidate's file has no usable ModelNew",
    Status.INVALID_REFERENCE: "the reference's file is incomplete, or the reference itself fails here",
    Status.TOOL_ERROR: "the judge itself could not do its work; this says nothing about the candidate",
}
