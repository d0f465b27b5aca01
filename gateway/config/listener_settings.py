"""Listeners: where STOMP clients and operators connect, and the limits before a client has logged in.

`Listener` has more fields than a class of ours usually has, because it mirrors one flat mapping of the file.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.addresses import (
    LISTEN_PATTERN,
    FileMode,
    HostPortOrSocket,
    ListenAddress,
    Network,
    SocketAddress,
    SocketFile,
    SocketGroup,
)
from gateway.config.base_models import ConfigModel, MergeableModel, Text
from gateway.config.broker_user import AdminUser
from gateway.config.scalars import Bytes, Duration, Flag, Number, Seconds, SecondsAboveZero, mistake
from gateway.config.tls_settings import ListenerTls, ServerTls

DEFAULT_ADMIN_ADDRESS: Final = SocketAddress("127.0.0.1", 15693)

WEBSOCKET_KEYS: Final = frozenset((
    "path", "frame", "allowed_origins", "use_http_auth", "bearer_tokens", "token_cookie", "compression",
    "ping_interval", "idle_timeout", "strict_transport_security",
))  # fmt: skip
SOCKET_KEYS: Final = frozenset(("socket_mode", "socket_group"))
"""Keys for Unix-domain sockets only."""
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(?::[0-9]{1,5})?")
_COOKIE_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PATH: Final = re.compile(r"[!-~]+")


def _path(value: str) -> str:
    if not value.startswith("/") or set(value) & set("?#") or not _PATH.fullmatch(value):
        raise mistake("A path begins with / and has no ?, no #, no spaces, and nothing beyond ASCII, for example /ws.")
    return value


def is_origin(value: str) -> bool:
    """Whether a browser could send this as a page's origin (RFC 6454)."""
    return value == "null" or _ORIGIN.fullmatch(value) is not None


def _origin(value: str) -> str:
    if value == "*":
        raise mistake(
            "`*` is not a valid origin.", "To let every web page connect, leave allowed_origins out, or empty: []."
        )
    if not is_origin(value):
        raise mistake(
            "An origin is a scheme, a host, and a port if it is not the usual one, as browsers write it: in small "
            "letters, without a slash or a path after it. For example https://example.org or http://localhost:8080."
        )
    return value


def _cookie_name(value: str) -> str:
    if not _COOKIE_NAME.fullmatch(value):
        raise mistake("The name of a cookie has letters, digits and some signs such as - and _, but no spaces or =.")
    return value


def _header_value(value: str) -> str:
    if not value.isascii() or not value.isprintable() or value != value.strip():
        raise mistake("The value of an HTTP header is printable ASCII on one line, for example max-age=31536000.")
    return value


class Listener(ConfigModel):
    """One address where STOMP clients connect, and the limits that hold there before they log in."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["tcp"]}, {"required": ["websocket"]}, {"required": ["unix"]}]}
    )

    tcp: SocketAddress | None = None
    """Address and port, host:port. Port 0 takes a free one. IPv6 in brackets and quotes: '[::1]:61613'. This,
    websocket or unix."""
    websocket: HostPortOrSocket | None = None
    """The same, for STOMP over WebSocket: browsers connect here. Or a Unix-domain socket: unix:PATH."""
    unix: SocketFile | None = None
    """Path of a Unix-domain socket, for clients on this machine. The gateway makes it, and removes it at its end."""
    socket_mode: FileMode = FileMode(0o660)
    """For a Unix-domain socket: its mode, in quotes. Who may write to it may connect."""
    socket_group: SocketGroup | None = None
    """For a Unix-domain socket: its group, by name, or by number in quotes. The gateway's user has to be in it. null:
    the gateway's own group."""
    path: Annotated[Text, AfterValidator(_path)] = "/ws"
    """For websocket: the path of its URL. A slash after it and a query change nothing."""
    frame: Literal["text", "binary"] = "text"
    """For websocket: how messages to clients are sent. What is not UTF-8 is sent as binary in any case, since browsers
    would close the connection."""
    allowed_origins: tuple[Annotated[Text, AfterValidator(_origin)], ...] = ()
    """For websocket: web pages that may connect, by scheme, host and port: https://example.org. Compared exactly.
    Empty: all. Clients other than browsers send no origin, and may always connect."""
    use_http_auth: Flag = False
    """For websocket: HTTP Basic credentials of the request, where there are any, replace CONNECT's."""
    bearer_tokens: Flag = False
    """For websocket: the token of the request's Authorization: Bearer, where there is one, is the login. It replaces
    CONNECT's login and passcode."""
    token_cookie: Annotated[Text, AfterValidator(_cookie_name)] | None = None
    """For websocket: name of a cookie whose value is a token that is the login in the same way. Needs allowed_origins:
    browsers send cookies with requests of any page."""
    compression: Flag = False
    """For websocket: compress messages (permessage-deflate). It costs memory for each client."""
    ping_interval: Seconds = 30.0
    """For websocket: how often a silent client is asked for a sign of life (ping). 0 is never."""
    idle_timeout: Seconds = 60.0
    """For websocket: a client from which nothing came for this long, not even a pong, is closed. 0 is never."""
    strict_transport_security: Annotated[Text, AfterValidator(_header_value)] | None = None
    """For websocket: value of the header Strict-Transport-Security in the answer to the handshake."""
    max_connections: Number | None = None
    """Connections at once; further ones are closed as soon as they come. null: without limit."""
    max_connections_per_address: Number | None = None
    """Connections of one address at once, logged in or not; further ones are closed as well. null: without limit."""
    max_unauthenticated_per_address: Number | None = 2000
    """Connections of one address that have not logged in; further ones are closed as well. null: without limit."""
    max_handshakes: Number = 5000
    """Connections that wait for their PROXY header or TLS handshake. When there are as many, those of the address that
    has the most are closed: at once if it has more than a tenth, otherwise after two seconds."""
    tcp_keepalive: Annotated[float, Duration(most=32767, whole=True)] = 60.0
    """A silent client is asked after this time, in whole seconds, whether it is still there. One that does not answer
    is gone after as long again. 0 is never."""
    tls: ListenerTls | None = None
    """Speak TLS on this address. null: in the clear."""
    proxy_protocol: Flag = False
    """Every connection begins with a PROXY protocol header (v1 or v2), before TLS; others are closed. Only behind a
    proxy that sends it: whoever can connect can claim any address."""
    trusted_proxies: tuple[Network, ...] = ()
    """For proxy_protocol: networks that connections may come from; others are closed as soon as they come. Empty:
    all."""
    allowed_networks: tuple[Network, ...] = ()
    """Networks that clients may be in, 10.0.0.0/8 or 192.0.2.7; connections of others are closed as soon as they come.
    Empty: all. Behind a proxy the client is the one in the PROXY header."""
    denied_networks: tuple[Network, ...] = ()
    """Networks that clients, and proxies, may not be in, whatever the other lists say."""
    implicit_connect: Flag = False
    """A client may leave out CONNECT: it is then the default user in the default virtual host."""
    login_timeout: SecondsAboveZero = 10.0
    """A client that has not logged in this long after it connected is closed."""
    max_frame_size_unauthenticated: Bytes = 64 << 10
    """The largest frame that a client may send before it has logged in."""
    max_headers: Number = 100
    """The most different headers in one frame."""
    max_header_lines: Number = 1000
    """The most header lines in one frame, those that repeat a header included. They do not count for max_headers."""
    max_header_length: Bytes = 102_400
    """The longest header name, and the longest header value, in bytes."""
    backlog: Number = 1024
    """Connections that the operating system queues until the gateway accepts them."""

    @property
    def address(self) -> ListenAddress:
        """Where it listens, by any transport."""
        address = self.tcp or self.websocket or self.unix
        assert address is not None  # noqa: S101 - `consistency` has checked it
        return address


class AdminSettings(MergeableModel):
    """Where operators look in: only an address, or more than that, or `off`."""

    address: HostPortOrSocket | None = Field(
        default=DEFAULT_ADMIN_ADDRESS, json_schema_extra={"default": str(DEFAULT_ADMIN_ADDRESS)}
    )
    """Address and port, host:port. Port 0 takes a free one. Or a Unix-domain socket: unix:PATH. null: no admin
    listener."""
    socket_mode: FileMode = FileMode(0o660)
    """For a Unix-domain socket: its mode, in quotes. Who may write to it may connect."""
    socket_group: SocketGroup | None = None
    """For a Unix-domain socket: its group, by name, or by number in quotes. null: the gateway's own group."""
    users: tuple[AdminUser, ...] = ()
    """Who may look in, and with the role full also close sessions, reload and trace, by HTTP Basic. Empty: everybody
    who can connect may look in, and do the rest only from this machine itself."""
    tls: ServerTls | None = None
    """Speak HTTPS. null: plain HTTP."""
    allowed_networks: tuple[Network, ...] = ()
    """Networks that operators may be in; connections of others are closed as soon as they come. Empty: all."""
    denied_networks: tuple[Network, ...] = ()
    """Networks that operators may not be in, also if allowed_networks has them."""
    allowed_hosts: tuple[Text, ...] = ()
    """Names by which browsers may reach it, besides IP addresses and localhost. Any other Host header is refused, so
    that no foreign web page can look in."""

    @model_validator(mode="before")
    @classmethod
    def _only_an_address(cls, value: object) -> object:
        if value is False or value == "off":  # YAML reads a bare off as false
            return {"address": None}
        if isinstance(value, (bool, int, float)):
            raise mistake("An address, a mapping or off belongs here.", f"For example {DEFAULT_ADMIN_ADDRESS}.")
        return {"address": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape = super().__get_pydantic_json_schema__(schema, handler)
        shape["type"] = ["object", "null", "string", "boolean"]
        shape["pattern"] = f"^off$|{LISTEN_PATTERN}"
        shape["not"] = {"const": True}
        return shape
