"""Where the segments of a journal are shipped: `journal.ship` of the configuration."""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ValidationInfo

from gateway.config.base_models import MergeableModel, directory_of
from gateway.config.scalars import mistake

_SECRETS: Final = "The gateway takes credentials from the environment, as the store's own tools do: docs/journal.md."
_BY_NAME: Final = frozenset(("s3", "s3a", "gs"))
_STORES: Final = _BY_NAME | {"az", "abfs", "abfss", "adl", "azure"}


def _place(value: object, info: ValidationInfo) -> str:
    if not isinstance(value, str) or not value:
        raise mistake("A directory, or the URL of an object store, is needed here.")
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
    """A directory (relative to this file's directory), or a URL of an object store: s3://bucket/prefix, gs://, az://.
    null: nothing is shipped."""

    def __str__(self) -> str:
        return str(self.to)
