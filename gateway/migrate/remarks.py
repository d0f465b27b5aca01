"""What there is to say to the person who migrates, beside the configuration itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gateway.errors import GatewayError
from gateway.migrate.settings import Given


class Weight(Enum):
    """How much a remark matters; the value is the heading that its kind stands under."""

    NEEDED = "To do before the gateway can serve as the plugin does"
    LOST = "Not carried over"
    NOTE = "Worth knowing"


@dataclass(frozen=True)
class Remark:
    """One sentence or two, and what it is about."""

    weight: Weight
    about: str
    """Place in a file, or a few words; empty for all of it."""
    text: str

    def __str__(self) -> str:
        return f"{self.about}: {self.text}" if self.about else self.text


class MigrateError(GatewayError):
    """Files that cannot be migrated, with every mistake in them."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(["nothing is written:", *(f"  {mistake}" for mistake in mistakes)]))
        self.mistakes = tuple(mistakes)


@dataclass
class Remarks:
    """Collected on the way."""

    found: list[Remark] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def needed(self, about: object, text: str) -> None:
        """Something that somebody must do."""
        self._add(Weight.NEEDED, about, text)

    def lost(self, about: object, text: str) -> None:
        """Something that the gateway does not have, and what that means."""
        self._add(Weight.LOST, about, text)

    def note(self, about: object, text: str) -> None:
        """Something that would surprise."""
        self._add(Weight.NOTE, about, text)

    def mistake(self, about: object, text: str) -> None:
        """Something that RabbitMQ itself would refuse, or that nobody knows."""
        line = f"{_place(about)}: {text}"
        if line not in self.mistakes:
            self.mistakes.append(line)

    def unknown(self, about: object, *, lenient: bool) -> None:
        """A key of a plugin that is not known: a mistake, unless they are told to be lenient about it."""
        if lenient:
            self.lost(about, "This key is not known. Find out what it does, and whether clients need it.")
        else:
            self.mistake(about, "This key is not known. Delete it, or go on without it by --lenient.")

    def of(self, weight: Weight) -> Iterator[Remark]:
        """Those of a weight."""
        return (remark for remark in self.found if remark.weight is weight)

    def raise_mistakes(self) -> None:
        """Raise `MigrateError` if there is any."""
        if self.mistakes:
            raise MigrateError(self.mistakes)

    def _add(self, weight: Weight, about: object, text: str) -> None:
        remark = Remark(weight, _place(about), text)
        if remark not in self.found:
            self.found.append(remark)


def _place(about: object) -> str:
    return str(about.origin) if isinstance(about, Given) else str(about)
