"""What all parts of a configuration have in common: strict, frozen, and some kinds of values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.quantities import mistake

MAX_SHORT_STRING = 255
"""Bytes in an AMQP short string, which is how a virtual host's name travels (AMQP 0-9-1, 4.2.5.3)."""

Text = Annotated[str, Field(strict=True, min_length=1)]


def fits_short_string(name: str) -> bool:
    """Whether a name can travel as an AMQP short string."""
    try:
        return len(name.encode()) <= MAX_SHORT_STRING
    except UnicodeEncodeError:  # a lone surrogate, from bytes that were not UTF-8
        return False


def _virtual_host_name(name: str) -> str:
    if not fits_short_string(name):
        raise mistake(f"A virtual host's name has at most {MAX_SHORT_STRING} bytes.")
    return name


def _readable_file(value: object, info: ValidationInfo) -> object:
    """Resolve against the configuration file's directory, and prove that the file can be opened."""
    if not isinstance(value, str) or not value:
        raise mistake("The name of a file is needed here.")
    path = base_directory(info.context) / value
    try:
        path.open("rb").close()
    except OSError as error:
        raise mistake(f"This file cannot be read: {error.strerror}.") from None
    return path


def base_directory(context: object) -> Path:
    """The directory that relative file names start from, out of a validation context."""
    directory = context.get("directory") if isinstance(context, dict) else None
    return directory if isinstance(directory, Path) else Path()


VirtualHostName = Annotated[Text, AfterValidator(_virtual_host_name)]
ReadableFile = Annotated[Path, BeforeValidator(_readable_file, json_schema_input_type=str)]


class Part(BaseModel):
    """Base of all parts of a configuration: frozen, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Group(Part):
    """A part whose keys are optional: each may be said or not, and an empty one (`null` in YAML) says nothing.

    Laid over another of its kind (`laid_over`), only what it says counts.
    """

    @model_validator(mode="before")
    @classmethod
    def _nothing_said(cls, value: object) -> object:
        return {} if value is None else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape = handler.resolve_ref_schema(handler(schema))
        shape["type"] = ["object", "null"]
        return shape


GroupT = TypeVar("GroupT", bound=Group)


def laid_over(below: GroupT, above: Group) -> GroupT:
    """`below` with everything that `above` says; groups inside are laid over each other in turn.

    Args:
        below: the values to start from.
        above: a group with fields of the same names; its other fields are left out.
    """
    changes: dict[str, object] = {}
    for name in above.model_fields_set & type(below).model_fields.keys():
        new, old = getattr(above, name), getattr(below, name)
        changes[name] = laid_over(old, new) if isinstance(new, Group) and isinstance(old, Group) else new
    return below.model_copy(update=changes)
