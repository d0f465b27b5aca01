"""Where the conversations are, and which there are."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gateway.errors import GatewayError
from gateway.parity.script import Conversation, read_conversation


class LibraryError(GatewayError):
    """The conversations are missing."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A row of departures.md.

    Args:
        plugin: what the plugin does; the text by which conversations name the row.
        gateway: what the gateway does instead.
        is_shown: True when there is a conversation that shows it.
    """

    plugin: str
    gateway: str
    is_shown: bool


def folder() -> Path:
    """Return the folder with the conversations: beside this module where installed, that of the tests in a checkout.

    Raises:
        LibraryError: neither is there.
    """
    here = Path(__file__).parent
    for candidate in (here / "transcripts", here.parents[1] / "tests" / "transcripts"):
        if (candidate / "departures.md").is_file():
            return candidate
    raise LibraryError(f"the conversations are missing in {here / 'transcripts'}. Install stomp-gateway again.")


def conversations(only: str | None = None) -> list[Conversation]:
    """Return the conversations, sorted by name.

    Args:
        only: those whose name has this text in it, or matches this pattern with `*`, `?` or `[...]`; None for all.

    Raises:
        LibraryError: there are none at all.
        ScriptError: one breaks the format.
    """
    found = (read_conversation(path) for path in sorted(folder().rglob("*.stomp")))
    return [conversation for conversation in found if only is None or _matches(conversation.name, only)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) if any(sign in pattern for sign in "*?[") else pattern in name


def departures() -> dict[str, Departure]:
    """Return the rows of departures.md by their first column. Raises LibraryError."""
    rows = [line for line in (folder() / "departures.md").read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    return {plugin: Departure(plugin, gateway, shown == "yes") for plugin, gateway, shown in cells}
