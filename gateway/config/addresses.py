"""Addresses in configuration files: where the gateway listens, and where its brokers are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from gateway.config.quantities import VARIABLE_PATTERN, mistake

MAX_PORT = 65535

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/@\[\]?#]+):([0-9]{1,5})")
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True)
class SocketAddress:
    """A local TCP address to listen on."""

    host: str
    """A name or an IP address, IPv6 without its brackets. 0.0.0.0 and :: mean every address."""
    port: int
    """0 lets the operating system choose a free one."""

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    @classmethod
    def read(cls, value: object) -> SocketAddress:
        """From text like `127.0.0.1:61613` or `[::1]:61613`; raises `mistake` for anything else."""
        if isinstance(value, cls):
            return value
        match = _HOST_AND_PORT.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise mistake("An address to listen on is written host:port.", _address_advice(value))
        if int(match[2]) > MAX_PORT:
            raise mistake("A port is a number from 0 to 65535.")
        return cls(_host(match[1].strip("[]")), int(match[2]))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.to_string_ser_schema(when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "pattern": rf"^(\[[^\]\s]+\]|[^\s:/@\[\]?#]+):[0-9]{{1,5}}$|{VARIABLE_PATTERN}"}


def _address_advice(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"Write 127.0.0.1:{value} for this machine only, or 0.0.0.0:{value} for every IPv4 address."
    if not isinstance(value, str):
        return None
    if value.startswith((":", "*:")) and value.count(":") == 1:
        return "Write 0.0.0.0 as the host for every IPv4 address, 127.0.0.1 for this machine only."
    if value.count(":") > 1:
        return 'An IPv6 address stands in brackets, and the whole in quotes: "[::1]:61613".'
    return "For example 127.0.0.1:61613."


@dataclass(frozen=True)
class BrokerUrl:
    """Where a broker listens: an AMQP URL without credentials and without a virtual host."""

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

    @classmethod
    def read(cls, value: object) -> BrokerUrl:
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
            raise mistake("A broker's URL is amqp://host:port, or amqps://host:port with TLS.")
        return cls(parts.scheme, _host(parts.hostname), _broker_port(parts))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.to_string_ser_schema(when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "pattern": rf"^[Aa][Mm][Qq][Pp][Ss]?://[^/@\s?#]+$|{VARIABLE_PATTERN}"}


def _refuse_extras(parts: SplitResult) -> None:
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


def _host(host: str) -> str:
    """The host itself, which a name server can be asked for; raises `mistake` otherwise.

    Asking encodes it in the same way (IDNA), and IP addresses pass.
    """
    try:
        host.encode("idna")
    except UnicodeError:
        raise mistake(
            "This is not the name of a host.", "Between dots a name has at least 1 and at most 63 characters."
        ) from None
    if not host.isprintable():
        raise mistake("This is not the name of a host.", "It holds a character that cannot be printed.")
    return host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
