"""The configuration of what is kept for the pipeline: the traffic journal, its shipping, and archives of messages."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from gateway.config.base_models import ConfigModel, Directory, MergeableModel, ReadableFile, Text, directory_of
from gateway.config.broker_user import User
from gateway.config.scalars import Bytes, Duration, Factor, Number, SecondsAboveZero, mistake

_DAY: Final = 86_400.0
_NODE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
AMQP: Final = "amqp"
"""The place that means a stream of the broker."""

LARGEST_STREAM_SEGMENT: Final = 1 << 30
"""Bytes of a segment that goes through a stream: gateway and collector each have it in memory at once."""

_SECRETS: Final = "The gateway takes credentials from the environment, as the store's own tools do: docs/journal.md."
_BY_NAME: Final = frozenset(("s3", "s3a", "gs"))
_STORES: Final = _BY_NAME | {"az", "abfs", "abfss", "adl", "azure"}
_BINDABLE: Final = re.compile(r"/topic/[^/]+|/exchange/[^/]+(/[^/]*)?")
_BY_DEFAULT_EXCHANGE: Final = ("/queue/", "/amq/queue/", "/temp-queue/", "/reply-queue/")


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


def _place(value: object, info: ValidationInfo) -> str:
    if not isinstance(value, str) or not value:
        raise mistake("A URL, a directory, or amqp is needed here.")
    if value == AMQP:
        return value
    place = checked_place(value)
    return place if "://" in place else str(directory_of(place, info))


def checked_place(value: str) -> str:
    """The URL of an object store, or a directory. Raises `mistake`, without the value, for what is neither."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", value):
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        raise mistake("This is not a URL.") from None
    if parts.query or parts.fragment or parts.password is not None or (parts.scheme in _BY_NAME and "@" in value):
        raise mistake("This URL holds more than a place.", _SECRETS)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return parts.path
    if parts.scheme not in _STORES or not parts.netloc:
        raise mistake("A place is a directory, or a URL like s3://bucket/prefix, gs://bucket/prefix or az://container.")
    return value


class ShipSettings(MergeableModel):
    """Shipping: a copy of every finished segment goes to one place, from where the pipeline reads it."""

    to: Annotated[str, BeforeValidator(_place, json_schema_input_type=str)] | None = None
    """A URL of an object store (s3://bucket/prefix, gs://, az://), a directory (relative to this file's directory), or
    amqp: a stream of the broker, for `stomp-gateway journal collect`. null: nothing is shipped."""
    user: User | None = None
    """For amqp: who publishes. null: default_user."""
    stream: Text = "stomp-gateway.journal"
    """For amqp: the name of the stream, in the virtual host's amqp_vhost. It is declared if it is not there."""
    stream_max_bytes: Bytes = 10 << 30
    """For amqp: the broker deletes the oldest segments of a stream that it declared when it is larger than this."""
    stream_max_age: Annotated[float, Duration(zero=False, whole=True)] = 7 * 86_400.0
    """For amqp: and those older than this."""

    def __str__(self) -> str:
        return self.to or "null"


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
    rotate_bytes: Bytes = 64 << 20
    """A segment (a file) of this size is finished."""
    rotate_after: SecondsAboveZero = 60.0
    """A segment this old is finished, whatever its size."""
    retain: SecondsAboveZero = 7 * _DAY
    """Finished segments of this gateway are deleted when they are this old."""
    retain_bytes: Bytes | None = None
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
    max_destinations: Number = 10_000
    """Distinct destinations of this virtual host; any further one is written as other."""


def _archived(text: str) -> str:
    if text.startswith(_BY_DEFAULT_EXCHANGE):
        raise mistake(
            "Messages to a queue go through the broker's default exchange, to which no stream can be bound.",
            "Archive the topic or the exchange in front of the queue. If there is none, let clients send to "
            "/exchange/<exchange>/<key>, and bind the queue to that.",
        )
    if _BINDABLE.fullmatch(text) is None:
        sentence = "This is no destination of a topic or an exchange."
        raise mistake(sentence, "Write /topic/<key> or /exchange/<exchange>/<key>.")
    return text


class Archive(ConfigModel):
    """A stream that gets a copy of every message to some destinations. The gateway declares it, and its bindings."""

    stream: Text
    """The stream's name in the broker."""
    destinations: Annotated[tuple[Annotated[Text, AfterValidator(_archived)], ...], Field(min_length=1)]
    """Which messages: /topic/<key>, where * is one word and # any number of words, or /exchange/<exchange>/<key>."""
    user: User
    """The broker's user who declares the stream and binds it; never a client."""
    max_age: Annotated[float, Duration(least=1)] | None = None
    """Of a stream that the gateway declares: the broker deletes messages that are older. null: never."""
    max_bytes: Bytes | None = None
    """Of a stream that the gateway declares: beyond it the broker deletes the oldest messages. null: no limit."""
