"""What the command tells the user beside the configuration: remarks, and mistakes in the files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from gateway.errors import GatewayError


class Severity(Enum):
    """How much a remark matters; the value is the heading above the remarks."""

    ACTION = "To do before the gateway can serve as the plugin does"
    DROPPED = "Not carried over"
    NOTE = "Worth knowing"


@dataclass(frozen=True)
class Remark:
    """One sentence or two about a setting, or about a few words; `about` is empty for all of the files."""

    severity: Severity
    about: str
    text: str

    def lines(self, width: int) -> list[str]:
        """The remark as an item of a list."""
        text = f"* {self.about}: {self.text}" if self.about else f"* {self.text}"
        return textwrap.wrap(
            " ".join(text.split()), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )


class MigrateError(GatewayError):
    """The files cannot be migrated. The text lists every mistake in them."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(["nothing is written:", *(f"  {mistake}" for mistake in mistakes)]))


@dataclass
class MigrationReport:
    """Remarks and mistakes, collected on the way, each once. `about` is often a `Setting`, whose text is its origin."""

    lenient: bool = False
    """Whether an unknown key is a remark instead of a mistake."""
    remarks: list[Remark] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def action(self, about: object, text: str) -> None:
        """Report something that the user must do."""
        self._add(Severity.ACTION, about, text)

    def dropped(self, about: object, text: str) -> None:
        """Report something that the gateway does not have, and what that means."""
        self._add(Severity.DROPPED, about, text)

    def note(self, about: object, text: str) -> None:
        """Report something that could surprise the user."""
        self._add(Severity.NOTE, about, text)

    def mistake(self, about: object, text: str) -> None:
        """Report something that RabbitMQ itself would refuse, or a key that is not known."""
        line = f"{about}: {text}"
        if line not in self.mistakes:
            self.mistakes.append(line)

    def unknown_key(self, about: object) -> None:
        """Report a key of one of the plugins that is not known."""
        if self.lenient:
            self.dropped(about, "This key is not known. Find out what it does, and whether clients need it.")
        else:
            self.mistake(about, "This key is not known. Delete it, or go on without it by --lenient.")

    def by_severity(self) -> Iterator[tuple[Severity, list[Remark]]]:
        """The remarks of each severity that has any."""
        for severity in Severity:
            if found := [remark for remark in self.remarks if remark.severity is severity]:
                yield severity, found

    def _add(self, severity: Severity, about: object, text: str) -> None:
        remark = Remark(severity, str(about), text)
        if remark not in self.remarks:
            self.remarks.append(remark)
