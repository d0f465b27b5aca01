"""The one error that this package shows to its users."""


class LocalError(Exception):
    """An error that the user can fix. Its text is one sentence that says what is wrong and what to do."""
