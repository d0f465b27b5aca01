"""Where the segments of a journal are shipped: `journal.ship` of the configuration."""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ValidationInfo

from gateway.config.base_models import MergeableModel, Text, directory_of
from gateway.config.broker_user import User
from gateway.config.scalars import Duration, Size, mistake

AMQP: Final = "amqp"
"""The place that means a stream of the broker."""

LARGEST_STREAM_SEGMENT: Final = 1 << 30
"""Bytes of a segment that goes through a stream: gateway and collector each have it in memory at once."""

_SECRETS: Final = "The gateway takes credentials from the environment, as the store's own tools do: docs/journal.md."
_BY_NAME: Final = frozenset(("s3", "s3a", "gs"))
_STORES: Final = _BY_NAME | {"az", "abfs", "abfss", "adl", "azure"}


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
    stream_max_bytes: Annotated[int, Size()] = 10 << 30
    """For amqp: the broker deletes the oldest segments of a stream that it declared when it is larger than this."""
    stream_max_age: Annotated[float, Duration(zero=False, whole=True)] = 7 * 86_400.0
    """For amqp: and those older than this."""

    def __str__(self) -> str:
        return self.to or "null"
