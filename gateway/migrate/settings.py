"""What RabbitMQ's files say, in one form for both kinds of them: by application and key, each with where it stands.

The form is that of the applications' environment in Erlang, which is what `rabbitmq.conf` becomes inside the broker.
A later file's key replaces that of an earlier one as a whole, parts and all: so does the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gateway.migrate.terms import Atom, Term, Tuple

_LONGEST: Final = 80


@dataclass(frozen=True)
class Origin:
    """Where a setting stands."""

    file: str
    line: int
    key: str
    """As the file calls it."""

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line} {shown(self.key)}"


class Template(str):
    """A text in which `$(NAME)` stands for an environment variable."""

    __slots__ = ()


@dataclass(frozen=True)
class Given:
    """A value, and where it stands."""

    value: Value
    origin: Origin


Value: TypeAlias = "Term | tuple[Given, ...] | Mapping[str, Given]"
"""A plain term; the entries of a list of listeners and the like; or the parts of a property list, by name."""

App: TypeAlias = dict[str, Given]


@dataclass
class Settings:
    """Everything that is known."""

    apps: dict[str, App] = field(default_factory=dict)
    """`rabbitmq_stomp`, `rabbitmq_web_stomp`, and of `rabbit` what the two look at."""
    foreign: int = 0
    """How many settings are about other parts of RabbitMQ."""

    def get(self, app: str, key: str) -> Given | None:
        """A setting, if it is there."""
        return self.apps.get(app, {}).get(key)

    def parts(self, app: str, key: str) -> Mapping[str, Given]:
        """The parts of a property list; none if it is not there."""
        given = self.get(app, key)
        return given.value if given is not None and isinstance(given.value, Mapping) else {}

    def part(self, app: str, key: str, name: str) -> Given | None:
        """One of them."""
        return self.parts(app, key).get(name)

    def lay_over(self, other: Settings) -> None:
        """Take what a later file says instead of what is there."""
        for app, entries in other.apps.items():
            self.apps.setdefault(app, {}).update(entries)
        self.foreign += other.foreign


def property_list(given: Given, *, last: bool = False) -> tuple[dict[str, Given], list[Term]]:
    """A property list by name, and whatever in it is no property.

    Args:
        given: the list.
        last: of equal names the last one counts, as with the keys of an application; otherwise the first.
    """
    found: dict[str, Given] = {}
    odd: list[Term] = []
    terms = given.value if isinstance(given.value, list) else []
    for term in terms:
        name, value, line = _property(term)
        if name is None:
            odd.append(term)
        else:
            origin = Origin(given.origin.file, line or given.origin.line, f"{given.origin.key}.{name}")
            if last or name not in found:
                found[name] = Given(value, origin)
    return found, odd


def _property(term: Term) -> tuple[str | None, Term, int]:
    if isinstance(term, Atom):
        return term.name, Atom("true"), term.line
    if isinstance(term, Tuple) and len(term.items) == 2 and isinstance(term.items[0], Atom):  # noqa: PLR2004
        return term.items[0].name, term.items[1], term.line
    return None, term, 0


def shown(name: str) -> str:
    """A name from a file, fit to be shown in one line."""
    text = printable(name)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def printable(name: str) -> str:
    """The whole of a name, without what would do something to a terminal."""
    return "".join(character if character.isprintable() else "?" for character in name)
