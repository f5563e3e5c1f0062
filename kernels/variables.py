"""Environment variables that stand for one of a few values."""

from __future__ import annotations

import contextlib
import os
import warnings

__all__ = ["value_of"]

_warned: set[tuple[str, str]] = set()


def value_of(name: str, *supported: str) -> str:
    """The value of the environment variable ``name`` if it is one of ``supported``, else ``""``.

    Another value is named in one warning. Raises nothing, also where warnings are errors: it is asked
    for while a package is imported.
    """
    value = os.environ.get(name, "")
    if not value or value in supported:
        return value
    if (name, value) not in _warned:
        _warned.add((name, value))
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(
                f"{name}={value!r} is ignored; supported: {', '.join(supported)}",
                RuntimeWarning,
                stacklevel=3,
            )
    return ""
