"""A command line that is wrong, told from work that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["UsageError", "usage"]


class UsageError(Exception):
    """The command line asks for something that is not there."""


@contextmanager
def usage() -> Iterator[None]:
    """What is wrong with the words typed, told from a ValueError of the work itself."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
