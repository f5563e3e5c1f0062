"""A measurement that this machine does not allow."""

from __future__ import annotations

__all__ = ["Unavailable"]


class Unavailable(Exception):
    """A measurement cannot be made here: ``reason`` in one line, and ``fix``, the command that mends it.

    ``fix`` is empty where nothing a user can do would. Never raised for what a
    candidate did.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason, fix)
        self.reason = reason
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.reason}; fix: {self.fix}" if self.fix else self.reason
