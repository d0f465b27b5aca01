"""What the command tells the user in addition to the configuration: remarks, and mistakes in the files."""

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


class MigrateError(GatewayError):
    """The files cannot be migrated. The text lists every mistake in them."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(["nothing is written:", *(f"  {mistake}" for mistake in mistakes)]))


@dataclass
class MigrationReport:
    """Remarks and mistakes, each once, in the order in which they are found.

    `about` is often a `Setting`, whose text is its origin. It is empty for a remark about all files.
    """

    lenient: bool = False
    """Whether an unknown key is a remark instead of a mistake."""
    remarks: dict[Severity, list[str]] = field(default_factory=lambda: {severity: [] for severity in Severity})
    mistakes: list[str] = field(default_factory=list)

    def action(self, about: object, text: str) -> None:
        """Report something that the user must do."""
        self._add(Severity.ACTION, about, text)

    def dropped(self, about: object, text: str) -> None:
        """Report something that the gateway does not have, and the consequence."""
        self._add(Severity.DROPPED, about, text)

    def note(self, about: object, text: str) -> None:
        """Report something that could surprise the user."""
        self._add(Severity.NOTE, about, text)

    def mistake(self, about: object, text: str) -> None:
        """Report something that RabbitMQ itself would refuse, or a key that is not known."""
        line = f"{about}: {text}"
        if line not in self.mistakes:
            self.mistakes.append(line)

    def unknown_key(self, about: object, place: str = "") -> None:
        """Report a key that is not known; `place` is where a key of this name belongs, if there is such a place."""
        if place:
            text = f"It has no effect here: it belongs into {place}. "
            advice = "Move it, delete it, or go on without it by --lenient."
        else:
            text, advice = "This key is not known. ", "Delete it, or go on without it by --lenient."
        if self.lenient:
            self.dropped(about, text + ("Find out what it does, and whether clients need it." if not place else ""))
        else:
            self.mistake(about, text + advice)

    def sections(self, width: int) -> Iterator[tuple[str, list[str]]]:
        """Each heading that has remarks, and the lines of its remarks as items of a list."""
        for severity, remarks in self.remarks.items():
            if remarks:
                yield severity.value, [line for remark in remarks for line in _item(remark, width)]

    def _add(self, severity: Severity, about: object, text: str) -> None:
        remark = f"{about}: {text}" if str(about) else text
        if remark not in self.remarks[severity]:
            self.remarks[severity].append(remark)


def _item(remark: str, width: int) -> list[str]:
    text = " ".join(f"* {remark}".split())
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
