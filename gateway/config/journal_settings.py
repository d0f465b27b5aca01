"""The traffic journal's configuration: what is written, where, and what is left out."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config.base_models import Directory, MergeableModel, ReadableFile, Text
from gateway.config.scalars import Count, Duration, Factor, Size, mistake
from gateway.config.ship_settings import ShipSettings

_DAY: Final = 86_400.0
_NODE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def checked_node_name(value: str) -> str:
    """A node's name; raises `mistake` if it cannot stand in file names."""
    if not set(value) <= _NODE:
        raise mistake(
            "Only letters, digits, dots, hyphens and underscores can stand here: it becomes part of file names."
        )
    return value


def _destination_pattern(value: str) -> str:
    if not value.startswith("/") or "*" not in value:
        raise mistake("A pattern begins with / and has a * for what changes, for example /queue/replies-*.")
    return value


class JournalSettings(MergeableModel):
    """The traffic journal: one line per event, for the pipeline and for people."""

    level: Annotated[Literal["off", "session", "message"], BeforeValidator(_off)] = "session"
    """session: sessions, subscriptions, errors, and counts every ten seconds. message: also every message, confirm and
    acknowledgement."""
    directory: Directory | None = None
    """Where it is written. null: below $STATE_DIRECTORY, else /var/lib/stomp-gateway for root, else
    ~/.local/state/stomp-gateway. Relative to this file's directory."""
    node: Annotated[Text, AfterValidator(checked_node_name)] | None = None
    """This gateway's name in the journal. null: the machine's name."""
    sample: Annotated[float, Factor(least=0.0001, most=1)] = 1.0
    """At level message, the share of messages that are written; each with all its events."""
    rotate_bytes: Annotated[int, Size()] = 64 << 20
    """A segment (a file) of this size is finished."""
    rotate_after: Annotated[float, Duration(zero=False)] = 60.0
    """A segment this old is finished, whatever its size."""
    retain: Annotated[float, Duration(zero=False)] = 7 * _DAY
    """Finished segments of this gateway are deleted when they are this old."""
    retain_bytes: Annotated[int, Size()] | None = None
    """The most that this gateway's segments may take in the directory: beyond it the oldest finished ones are deleted,
    shipped ones first. null: no limit."""
    ship: ShipSettings = Field(default_factory=ShipSettings)
    """Copies finished segments to one place. What is not shipped yet is kept, whatever its age: needs retain_bytes."""
    users: Literal["plain", "hashed"] = "plain"
    """Logins as they are, or as a keyed hash that is the same every time."""
    users_key_file: ReadableFile | None = None
    """The key of the hash, for several gateways that must agree. null: one is made, in the directory. Relative to this
    file's directory."""
    peers: Literal["full", "prefix", "none"] = "full"
    """Clients' addresses: as they are, cut to the network (/24, /48), or not at all."""
    correlate: bool = False
    """Messages carry the time of publishing in an AMQP header of their own, for the time that they wait in queues."""
    header_values: tuple[Text, ...] = ()
    """At level message, headers of SEND whose values are written. All others' never are."""
    destinations: tuple[Annotated[Text, AfterValidator(_destination_pattern)], ...] = ()
    """Destinations with generated parts, as patterns: each stands for all that fit it."""
    max_destinations: Annotated[int, Count()] = 10_000
    """Distinct destinations of this virtual host; any further one is written as other."""
