"""Settings as Python values. Whatever RabbitMQ would not take is a mistake, and has the value of a default here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from gateway.migrate.keys import RABBIT
from gateway.migrate.remarks import Remarks
from gateway.migrate.settings import Given, Settings
from gateway.migrate.terms import Atom, Tuple

DEFAULT = "the plugin's default"
_DefaultT = TypeVar("_DefaultT")


@dataclass(frozen=True)
class Reading:
    """The settings, and where to say what is wrong with them."""

    settings: Settings
    remarks: Remarks

    def number(self, given: Given | None, default: _DefaultT, least: int = 0) -> int | _DefaultT:
        """A whole number of at least `least`."""
        if given is None:
            return default
        value = given.value
        if isinstance(value, int) and value >= least:
            return value
        self.remarks.mistake(given, f"A whole number of at least {least} belongs here.")
        return default

    def limit(self, given: Given | None) -> int | None:
        """A number, or None where there is no limit."""
        if given is not None and given.value == Atom("infinity"):
            return None
        return self.number(given, None, 1)

    def switch(self, given: Given | None, default: bool) -> bool:
        """True or false."""
        if given is None:
            return default
        if given.value not in (Atom("true"), Atom("false")):
            self.remarks.mistake(given, "This is either true or false.")
        return given.value == Atom("true")

    def word(self, given: Given | None, choices: Collection[str], default: str) -> str:
        """One of some words."""
        if given is None:
            return default
        if isinstance(given.value, Atom) and given.value.name in choices:
            return given.value.name
        self.remarks.mistake(given, f"This is one of {', '.join(choices)}.")
        return default

    def text(self, given: Given | None, default: _DefaultT) -> str | _DefaultT:
        """A string or a binary of UTF-8."""
        if given is None:
            return default
        if isinstance(given.value, str):
            return given.value
        if isinstance(given.value, bytes):
            try:
                return given.value.decode()
            except UnicodeDecodeError:
                self.remarks.mistake(given, 'These octets are not UTF-8. In the Erlang form write <<"..."/utf8>>.')
                return default
        self.remarks.mistake(given, 'A text in " belongs here.')
        return default

    def get(self, app: str, key: str) -> Given | None:
        """A setting, if it is there."""
        return self.settings.get(app, key)

    def tls_part(self, name: str) -> Given | None:
        """A part of the broker's own `ssl_options`."""
        return self.settings.part(RABBIT, "ssl_options", name)


def is_encrypted(given: Given | None) -> bool:
    """Whether only the broker can read a value."""
    if given is None:
        return False
    value = given.value
    if isinstance(value, Tuple):
        return value.items[:1] == (Atom("encrypted"),)
    return (isinstance(value, str) and value.startswith("encrypted:")) or (
        isinstance(value, bytes) and value.startswith(b"encrypted:")
    )


def because(given: Given | None) -> str:
    """Where a value came from, for the comment behind it."""
    return DEFAULT if given is None else str(given.origin)
