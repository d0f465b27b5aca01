"""Addresses as configuration files write them: to listen on, of brokers, and of networks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from grp import getgrnam
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, ClassVar, Final, Self
from urllib.parse import SplitResult, quote, urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from gateway.config.base_models import made_from_text, socket_file
from gateway.config.scalars import VARIABLE_PATTERN, mistake, text_schema

MAX_PORT = 65535

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/@\[\]?#]+):([0-9]+)")
_DIGITS_OF_PORT = 5
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
_SOCKET_ADVICE: Final = (
    "The path of a Unix-domain socket belongs under unix; for websocket and admin write unix: before it."
)
_URL_PASSCODE: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/@]*@", re.IGNORECASE)


def without_passcodes(text: str) -> str:
    """The text with `***` in place of the passcode of each URL in it."""
    return _URL_PASSCODE.sub(r"\1:***@", text) if "://" in text else text


class TextValue(ABC):
    """A value that a file writes as one text."""

    PATTERN: ClassVar[str]
    """What the JSON Schema takes, besides a variable."""

    @classmethod
    @abstractmethod
    def read(cls, value: object) -> Self:
        """From a text; raises `mistake` for anything else. A value that was read already is taken as it is."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.to_string_ser_schema(when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return text_schema(cls.PATTERN)


@dataclass(frozen=True)
class SocketAddress(TextValue):
    """A local TCP address to listen on."""

    PATTERN: ClassVar[str] = r"^(\[[^\]\s]+\]|[^\s:/@\[\]?#*]+):[0-9]{1,5}$"

    host: str
    """A name or an IP address, IPv6 without its brackets. 0.0.0.0 and :: mean every address."""
    port: int
    """0 lets the operating system choose a free one."""

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    def collides_with(self, other: ListenAddress) -> bool:
        """Whether it is impossible to listen on both at once."""
        if isinstance(other, UnixAddress) or self.port != other.port or self.port == 0:
            return False
        return self.host in (other.host, _every_address(other.host)) or other.host == _every_address(self.host)

    @classmethod
    def read(cls, value: object) -> Self:
        """From text like `127.0.0.1:61613` or `[::1]:61613`; raises `mistake` for anything else."""
        if isinstance(value, cls):
            return value
        match = _HOST_AND_PORT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1] == "*":
            raise mistake("An address is written host:port.", _address_advice(value))
        if len(match[2]) > _DIGITS_OF_PORT or int(match[2]) > MAX_PORT:
            raise mistake("The number after the colon is no port: a port is a number from 0 to 65535.")
        return cls(_checked_host(match[1].strip("[]")), int(match[2]))


def _address_advice(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return "Write 127.0.0.1:61613, with your port, for this machine only, or 0.0.0.0:61613 for every IPv4 address."
    if not isinstance(value, str):
        return None
    if value.startswith((":", "*:")) and value.count(":") == 1:
        return (
            "Write 0.0.0.0 as the host for every IPv4 address, [::] for every IPv6 address, a listener with each for "
            "both; 127.0.0.1 is for this machine only."
        )
    if "/" in value:
        is_path = value.startswith(("/", "unix:"))
        return _SOCKET_ADVICE if is_path else "Delete what stands before the host and after the port."
    if value.count(":") > 1:
        return 'An IPv6 address stands in brackets, and the whole in quotes: "[::1]:61613".'
    return "For example 127.0.0.1:61613."


@dataclass(frozen=True)
class BrokerUrl(TextValue):
    """Where a broker listens: an AMQP URL without credentials and without a virtual host."""

    PATTERN: ClassVar[str] = r"^[Aa][Mm][Qq][Pp][Ss]?://[^/@\s?#]+$"

    scheme: str
    """`amqp` or `amqps`."""
    host: str
    """A name or an IP address, IPv6 without its brackets."""
    port: int

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "amqps"

    def __str__(self) -> str:
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}"

    def with_login(self, login: str, passcode: str, virtual_host: str) -> str:
        """The URL that an AMQP library takes. It holds the passcode, so it must never be logged.

        Its path must not be normalized: `..` is the name of a virtual host like any other.
        """
        user, secret, path = (quote(text, safe="") for text in (login, passcode, virtual_host))
        return f"{self.scheme}://{user}:{secret}@{_bracketed(self.host)}:{self.port}/{path}"

    @classmethod
    def read(cls, value: object) -> Self:
        """From text like `amqps://rabbit-a:5671`; raises `mistake` for anything else. The port may be left out.

        No message repeats the text: people put passcodes into URLs.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise mistake("A broker's URL is text like amqp://rabbit-a:5672.")
        try:
            parts = urlsplit(value)
        except ValueError:
            raise mistake("This is not a URL.", "Write it like amqp://rabbit-a:5672.") from None
        _refuse_extras(parts)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or re.search(r"\s", parts.netloc):
            advice = "Write amqp:// before it." if "//" not in value else None
            raise mistake("A broker's URL is amqp://host:port, or amqps://host:port with TLS.", advice)
        return cls(parts.scheme, _checked_host(parts.hostname), _broker_port(parts))


def _refuse_extras(parts: SplitResult) -> None:
    if "," in parts.netloc:
        raise mistake("Here is more than one URL.", "Make each an entry of the list: [amqp://a:5672, amqp://b:5672].")
    if "@" in parts.netloc:
        raise mistake(
            "A broker's URL holds no credentials: the gateway logs in with each client's own.",
            "For clients that send none, put login and passcode under default_user.",
        )
    if parts.query or parts.fragment:
        raise mistake(
            "A broker's URL has nothing after the port.", "connect_timeout, heartbeat and tls are keys of upstream."
        )
    if parts.scheme in _DEFAULT_PORTS and parts.path:
        raise mistake(
            "A broker's URL has no path: the client's host header chooses the virtual host.",
            "Delete everything from the slash on; the broker's name for a virtual host belongs under amqp_vhost.",
        )


def _broker_port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise mistake("A broker's port is a number from 1 to 65535.")
    return port or _DEFAULT_PORTS[parts.scheme]


def _checked_host(host: str) -> str:
    """The host itself; raises `mistake` for one that no name server can be asked for (IDNA). IP addresses pass."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise mistake(
            "This is not the name of a host.", "Between dots a name has at least 1 and at most 63 characters."
        ) from None
    if "*" in host:
        raise mistake(
            "This is not the name of a host.", "It holds a star, and only the name of one host can stand here."
        )
    if not host.isprintable():
        raise mistake("This is not the name of a host.", "It holds a character that cannot be printed.")
    return host


def _every_address(host: str) -> str:
    """The address that means all of a host's kind."""
    return "::" if ":" in host else "0.0.0.0"  # noqa: S104 - compared with, not listened on


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# Unix-domain sockets.


_UNIX_PREFIX: Final = "unix:"
_SOCKET_PATTERN: Final = f"^{_UNIX_PREFIX}.*[^0-9]"

LISTEN_PATTERN: Final = f"{SocketAddress.PATTERN}|{_SOCKET_PATTERN}|{VARIABLE_PATTERN}"
"""What the JSON Schema takes for an address to listen on."""

_GROUP_NUMBER: Final = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class UnixAddress:
    """A Unix-domain socket to listen on, by the path of its file."""

    path: str

    def __str__(self) -> str:
        return f"{_UNIX_PREFIX}{self.path}"

    def collides_with(self, other: ListenAddress) -> bool:
        """See `SocketAddress`."""
        return self == other


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
    if isinstance(value, str) and value.startswith(_UNIX_PREFIX) and not value.removeprefix(_UNIX_PREFIX).isdecimal():
        return value.removeprefix(_UNIX_PREFIX)
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


# Networks.


_NETWORK_PATTERN: Final = r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"
_OF_MAPPED: Final = 96


def _network(value: object) -> IPv4Network | IPv6Network:
    if isinstance(value, (IPv4Network, IPv6Network)):
        return value
    try:
        if not isinstance(value, str) or not re.fullmatch(_NETWORK_PATTERN, value):
            raise ValueError
        address, network = ip_address(value.partition("/")[0]), ip_network(value, strict=False)
    except ValueError:
        sentence = "A network is an IP address, with a slash and the length of its prefix after it."
        advice = "For example 10.0.0.0/8, '2001:db8::/32', or 192.0.2.7 alone. Names of hosts do not fit here."
        raise mistake(sentence, advice) from None
    if address != network.network_address:
        advice = "The network that 10.1.2.3 is in is written 10.0.0.0/8, and that address alone 10.1.2.3."
        raise mistake("This address has bits that are set after the prefix.", advice)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if mapped is None or network.prefixlen < _OF_MAPPED:
        return network
    return IPv4Network((mapped, network.prefixlen - _OF_MAPPED))


Network = Annotated[
    IPv4Network | IPv6Network,
    BeforeValidator(
        _network, json_schema_input_type=Annotated[str, Field(pattern=f"{_NETWORK_PATTERN}|{VARIABLE_PATTERN}")]
    ),
]
"""An IPv4-mapped IPv6 network is the IPv4 one."""
