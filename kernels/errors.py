"""Every exception the toolkit raises on purpose.

::

    KernelsError
    |-- ToolchainError          a compiler, ninja or CUDA toolkit is missing or does not fit; says the fix
    |-- CompileError            the compiler ran and refused the source; carries its own words
    |-- LaunchError             a built kernel could not be found, loaded or launched
    |   `-- CaptureError        a first call inside CUDA graph capture
    `-- CacheError              the cache directory cannot be used

Arguments a user passes wrongly are reported as the built-in ``ValueError`` and
``TypeError``, as torch users expect.
"""

from __future__ import annotations

__all__ = [
    "CacheError",
    "CaptureError",
    "CompileError",
    "KernelsError",
    "LaunchError",
    "ToolchainError",
    "first_line",
]


class KernelsError(RuntimeError):
    """Base of every exception this toolkit raises on purpose."""


class ToolchainError(KernelsError):
    """A tool that a build needs is missing or unusable.

    ``missing`` says what is wrong in one sentence; ``fix`` is a command (or one
    sentence) that mends it.
    """

    def __init__(self, missing: str, fix: str) -> None:
        super().__init__(missing, fix)
        self.missing = missing
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.missing}\n  fix: {self.fix}"


class CompileError(KernelsError):
    """The compiler refused a source.

    ``spec`` is the readable name of the specialisation, ``output`` the
    compiler's own words, ``excerpt`` the numbered source around the first error.
    """

    def __init__(self, spec: str, output: str, excerpt: str = "") -> None:
        super().__init__(spec, output, excerpt)
        self.spec = spec
        self.output = output
        self.excerpt = excerpt

    def __str__(self) -> str:
        parts = [f"compiling {self.spec} failed", self.output.strip()]
        if self.excerpt:
            parts.append(self.excerpt)
        return "\n\n".join(parts)


class LaunchError(KernelsError):
    """A built kernel could not be found, loaded or launched."""


class CaptureError(LaunchError):
    """A specialisation was first asked for inside CUDA graph capture."""


class CacheError(KernelsError):
    """The cache directory cannot be used."""


def first_line(error: BaseException) -> str:
    """What went wrong in one line: the exception's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
