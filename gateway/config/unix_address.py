"""Unix-domain sockets to listen on, in place of an address and a port: their files, and who may connect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from grp import getgrnam
from typing import Annotated, ClassVar, Final, Self

from pydantic import (
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)

from gateway.config.base_models import made_from_text, socket_file
from gateway.config.scalars import VARIABLE_PATTERN, SocketAddress, TextValue, mistake

_PREFIX: Final = "unix:"
_SOCKET_PATTERN: Final = f"^{_PREFIX}.*[^0-9]"

LISTEN_PATTERN: Final = f"{SocketAddress.PATTERN}|{_SOCKET_PATTERN}|{VARIABLE_PATTERN}"
"""What the JSON Schema takes for an address to listen on."""

_GROUP_NUMBER: Final = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class UnixAddress:
    """A Unix-domain socket to listen on, by the path of its file."""

    path: str

    def __str__(self) -> str:
        return f"{_PREFIX}{self.path}"


ListenAddress = SocketAddress | UnixAddress


class FileMode(int, TextValue):
    """Who may do what with a file, as in chmod."""

    PATTERN: ClassVar[str] = "^0?[0-7]{3}$"

    def __str__(self) -> str:
        return f"{int(self):04o}"

    @classmethod
    def read(cls, value: object) -> Self:
        """From a text of octal digits; raises `mistake` for anything else, as for 0660, which YAML reads as 432."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or not re.fullmatch(cls.PATTERN, value):
            raise mistake("The mode of a file is three octal digits in quotes, as for chmod.", 'For example "0660".')
        return cls(value, 8)


class GroupId(int):
    """The number of a group of this machine."""

    @classmethod
    def of(cls, text: str) -> Self:
        """From its name or number; raises `mistake` for a name that no group has."""
        if _GROUP_NUMBER.fullmatch(text):
            return cls(text)
        try:
            return cls(getgrnam(text).gr_gid)
        except (KeyError, ValueError, OSError):
            raise mistake(
                "This machine has no group of that name.", "Make it with groupadd, or give its number."
            ) from None


def socket_path(value: object) -> str | None:
    """The path in an address of the form unix:PATH; None if it is no such address, but a host and a port, perhaps."""
    if isinstance(value, str) and value.startswith(_PREFIX) and not value.removeprefix(_PREFIX).isdecimal():
        return value.removeprefix(_PREFIX)
    return None


def _unix_address(value: object, info: ValidationInfo) -> UnixAddress:
    return value if isinstance(value, UnixAddress) else UnixAddress(str(socket_file(value, info)))


def _listen_address(value: object, info: ValidationInfo) -> ListenAddress:
    if isinstance(value, UnixAddress) or (path := socket_path(value)) is None:
        return value if isinstance(value, UnixAddress) else SocketAddress.read(value)
    return _unix_address(path, info)


_AS_TEXT: Final = PlainSerializer(str, return_type=str)

SocketFile = Annotated[UnixAddress, PlainValidator(_unix_address), _AS_TEXT, WithJsonSchema({"type": "string"})]
"""A Unix-domain socket, as the path of its file."""

HostPortOrSocket = Annotated[
    ListenAddress,
    PlainValidator(_listen_address),
    _AS_TEXT,
    WithJsonSchema({"type": "string", "pattern": LISTEN_PATTERN}),
]
"""host:port, or a Unix-domain socket as unix:PATH."""

SocketGroup = Annotated[GroupId, made_from_text(GroupId, GroupId.of, str)]
