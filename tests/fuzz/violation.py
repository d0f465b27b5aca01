"""What a target raises."""

from __future__ import annotations


class ViolationError(AssertionError):
    """An input made the code break a promise; the text says which one."""


def demand(holds: bool, promise: str) -> None:
    """See that a promise is kept.

    Args:
        holds: whether it is.
        promise: what was promised, for the report.

    Raises:
        ViolationError: it is not.
    """
    if not holds:
        raise ViolationError(promise)
