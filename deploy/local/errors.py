"""The one error that this package shows to people."""


class LocalError(Exception):
    """Something the user can mend. Its text is one sentence that says what is wrong and what to do."""
