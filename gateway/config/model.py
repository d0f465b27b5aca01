"""The configuration as frozen, validated values.

Theory of operation. A file is validated once, into a `GatewayConfig`. `defaults` and each entry of `virtual_hosts` use
the same `VirtualHostSettings`: what an entry says is known from pydantic's record of the fields that were given, so the
settings are written once and an entry overrides exactly what it mentions. When the configuration is built, every entry
is laid over the defaults, and the result is kept by each name that a client may use: `GatewayConfig.virtual_host` is a
dictionary look-up.

Descriptions of fields are what the JSON Schema shows in editors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.addresses import BrokerUrl, SocketAddress
from gateway.config.quantities import Count, Duration, Size, Switch, mistake

PASS_THROUGH = "*"  # noqa: S105 - no password
"""The key of `virtual_hosts` that stands for every host that is not configured."""

MAX_SHORT_STRING = 255
"""Bytes in an AMQP short string, which is how a virtual host's name travels (AMQP 0-9-1, 4.2.5.3)."""

Text = Annotated[str, Field(strict=True, min_length=1)]


def _fits_short_string(name: str) -> bool:
    try:
        return len(name.encode()) <= MAX_SHORT_STRING
    except UnicodeEncodeError:  # a lone surrogate, from bytes that were not UTF-8
        return False


def _virtual_host_name(name: str) -> str:
    if not _fits_short_string(name):
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


class Listener(Part):
    """One address where STOMP clients connect, and the limits that hold there before they log in."""

    tcp: SocketAddress = Field(
        description="Address and port, host:port. Port 0 takes a free one. IPv6 in brackets and quotes: '[::1]:61613'."
    )
    login_timeout: Annotated[float, Duration(zero=False)] = Field(
        10.0, description="A client that has not logged in this long after it connected is closed."
    )
    max_frame_size_unauthenticated: Annotated[int, Size()] = Field(
        64 << 10, description="The largest frame that a client may send before it has logged in."
    )
    max_headers: Annotated[int, Count()] = Field(100, description="The most headers in one frame.")
    max_header_length: Annotated[int, Size()] = Field(
        102_400, description="The longest header name, and the longest header value, in bytes."
    )
    backlog: Annotated[int, Count()] = Field(
        1024, description="Connections that the operating system queues until the gateway accepts them."
    )


class Tls(Group):
    """TLS toward a broker, for amqps URLs."""

    ca_file: ReadableFile | None = Field(
        None, description="Certificates (PEM) to trust instead of the system's. Relative to this file's directory."
    )
    cert_file: ReadableFile | None = Field(
        None, description="The gateway's own certificate (PEM), where the broker asks for one. Needs key_file."
    )
    key_file: ReadableFile | None = Field(None, description="The private key (PEM, not encrypted) of cert_file.")
    verify: Annotated[bool, Switch()] = Field(
        True, description="Check the broker's certificate and its host name. false is for trials only."
    )


class Upstream(Group):
    """A RabbitMQ, as one or several nodes."""

    urls: tuple[BrokerUrl, ...] = Field(
        (BrokerUrl("amqp", "127.0.0.1", 5672),),
        min_length=1,
        description="Tried in order: amqp://host:port, or amqps:// with TLS. No credentials, no path.",
    )
    connect_timeout: Annotated[float, Duration(zero=False)] = Field(
        10.0, description="Limit for reaching one URL: TCP, TLS and AMQP handshakes together."
    )
    heartbeat: Annotated[float, Duration(most=65535, whole=True)] = Field(
        60.0, description="AMQP heart-beat interval in whole seconds; the broker may ask for less. 0 is none."
    )
    tls: Tls = Field(default_factory=Tls, description="TLS for amqps URLs.")


class DefaultUser(Part):
    """Who a client is when its CONNECT has no login; its passcode also serves a login without one."""

    login: Text = Field(description="The broker's user.")
    passcode: Annotated[SecretStr, Field(strict=True, min_length=1)] = Field(
        description="Its passcode. Better ${A_VARIABLE} than the passcode itself. This or passcode_file."
    )
    passcode_file: Path | None = Field(
        None,
        description="A file that holds the passcode; one line end after it is left out. "
        "Relative to this file's directory. This or passcode.",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape = handler.resolve_ref_schema(handler(schema))
        shape["required"] = ["login"]
        given = {"type": "string"}
        # Either may be present as null, which counts as absent; never both with a value.
        shape["oneOf"] = [{"required": [key], "properties": {key: given}} for key in ("passcode", "passcode_file")]
        for key in ("passcode", "passcode_file"):
            described = shape["properties"][key]
            shape["properties"][key] = {
                "type": ["string", "null"],
                "minLength": 1,
                "description": described["description"],
            }
        return shape


class ConfirmWindow(Group):
    """How much one client may have sent without the broker's confirm; beyond it the gateway stops reading it."""

    messages: Annotated[int, Count()] = Field(10_000, description="Messages waiting for the broker's confirm.")
    bytes: Annotated[int, Size()] = Field(64 << 20, description="Bytes of bodies waiting for the broker's confirm.")


class Transactions(Group):
    """Bounds of the transactions that one client may hold open. Beyond one of them: an ERROR."""

    max_open: Annotated[int, Count()] = Field(100, description="Transactions open at once.")
    max_actions: Annotated[int, Count()] = Field(10_000, description="SEND, ACK and NACK frames in one transaction.")
    max_bytes: Annotated[int, Size()] = Field(64 << 20, description="Bytes held by all open transactions together.")
    max_age: Annotated[float, Duration(zero=False)] = Field(
        600.0, description="A transaction open this long is aborted."
    )


class VirtualHostSettings(Group):
    """Every setting that a virtual host may have of its own; `defaults` gives the value for all others."""

    default_user: DefaultUser | None = Field(
        default_factory=lambda: DefaultUser(login="guest", passcode=SecretStr("guest")),
        description="Who a client is when its CONNECT has no login. null: such a client is refused.",
    )
    links: Literal["shared", "dedicated"] = Field(
        "shared",
        description="shared: clients with the same virtual host and credentials share AMQP connections. "
        "dedicated: AMQP connections for each client.",
    )
    login_cache: Annotated[float, Duration()] = Field(
        60.0, description="A login on a shared link is trusted this long after the broker accepted it. 0 asks always."
    )
    default_topic_exchange: Text = Field("amq.topic", description="The exchange behind /topic/ destinations.")
    default_nack_requeue: Annotated[bool, Switch()] = Field(
        True, description="Whether a NACK without a requeue header puts the message back into its queue."
    )
    max_frame_size: Annotated[int, Size()] = Field(
        4 << 20, description="The largest frame that a logged-in client may send: headers and body."
    )
    confirm_window: ConfirmWindow = Field(
        default_factory=ConfirmWindow, description="What one client may have sent without the broker's confirm."
    )
    auto_ack_window: Annotated[int, Count(most=65535)] = Field(
        2000,
        description="Messages that a subscription with ack:auto may have in hand before the gateway settles them "
        "(the AMQP prefetch).",
    )
    transactions: Transactions = Field(
        default_factory=Transactions, description="Bounds of the transactions that one client may hold open."
    )
    client_buffer: Annotated[int, Size()] = Field(
        1 << 20,
        description="Bytes waiting to be written to a client; above it the gateway stops settling its messages.",
    )
    slow_consumer_timeout: Annotated[float, Duration(zero=False)] = Field(
        60.0, description="A client whose buffer stays full this long is closed."
    )


class VirtualHostEntry(VirtualHostSettings):
    """A virtual host: its own names, its broker, and whatever it sets differently from `defaults`."""

    aliases: tuple[VirtualHostName, ...] = Field(
        (), description="Other values of CONNECT's host header that mean this virtual host: usually DNS names."
    )
    upstream: Upstream | None = Field(
        None, description="This virtual host's own broker. What it does not say comes from the upstream at the top."
    )
    amqp_vhost: VirtualHostName | None = Field(
        None, description="The broker's name for this virtual host, where it differs from the key."
    )


class VirtualHost(VirtualHostSettings):
    """A virtual host with all its settings, defaults merged in: what one session needs to know."""

    name: str
    """The key in `virtual_hosts`; for a host that was passed through, the host itself."""
    amqp_vhost: str
    """The broker's name for it."""
    upstream: Upstream
    """Its broker."""


class Logging(Group):
    """What is logged, and how. Log lines go to standard error."""

    format: Literal["console", "json"] = Field(
        "console", description="console is for people, json writes one object per line."
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least level that is logged.")


class GatewayConfig(Group):
    """A whole configuration. `gateway.config.load` reads one from a file, with the checks across keys besides."""

    listeners: tuple[Listener, ...] = Field(
        default_factory=lambda: (Listener(tcp=SocketAddress("127.0.0.1", 61613)),),
        min_length=1,
        description="Where STOMP clients connect.",
        json_schema_extra={"type": ["array", "null"]},
    )
    upstream: Upstream = Field(default_factory=Upstream, description="The broker of all virtual hosts without an own.")
    defaults: VirtualHostSettings = Field(
        default_factory=VirtualHostSettings, description="For every virtual host, unless it says otherwise."
    )
    default_vhost: VirtualHostName = Field(
        "/", description="The virtual host of a client whose CONNECT has no host header."
    )
    virtual_hosts: Mapping[VirtualHostName, VirtualHostEntry] = Field(
        default_factory=lambda: {"/": VirtualHostEntry()},
        description="Virtual hosts by the name that clients give in CONNECT's host header. "
        'The key "*" stands for every other name, which is passed to the broker as it is.',
        json_schema_extra={"type": ["object", "null"]},
    )
    logging: Logging = Field(default_factory=Logging, description="What is logged, and how.")
    drain_timeout: Annotated[float, Duration()] = Field(
        30.0, description="On SIGTERM, how long sessions may take to end in good order."
    )

    _by_name: dict[str, VirtualHost] = PrivateAttr(default_factory=dict)
    _by_host: dict[str, VirtualHost] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _lists_left_empty(cls, value: object) -> object:
        """A key with nothing under it, as after commenting its lines out, counts as absent."""
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if v is not None or k not in ("listeners", "virtual_hosts")}

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        for name, entry in self.virtual_hosts.items():
            resolved = self._by_name[name] = self._merged(name, entry)
            if name != PASS_THROUGH:
                self._by_host[name] = resolved
            for alias in entry.aliases:
                self._by_host.setdefault(alias, resolved)
        return self

    def _merged(self, name: str, entry: VirtualHostEntry) -> VirtualHost:
        settings = laid_over(self.defaults, entry)
        return VirtualHost.model_construct(
            name=name,
            amqp_vhost=entry.amqp_vhost or name,
            upstream=laid_over(self.upstream, entry.upstream) if entry.upstream else self.upstream,
            **{field: getattr(settings, field) for field in VirtualHostSettings.model_fields},
        )

    def virtual_host(self, host: str | None) -> VirtualHost | None:
        """The virtual host that a CONNECT frame's `host` header means.

        Args:
            host: the header's value, unescaped; None where the frame has none, which means `default_vhost`.

        Returns:
            The configured virtual host of that name or alias (names are compared exactly), else with the key `"*"` a
            virtual host of that very name, else None: the client is to be refused.
        """
        wanted = self.default_vhost if host is None else host
        found = self._by_host.get(wanted)
        return found if found is not None else self._pass_through(wanted)

    def _pass_through(self, host: str) -> VirtualHost | None:
        model = self._by_name.get(PASS_THROUGH)
        if model is None or not _fits_short_string(host):
            return None
        amqp_vhost = host if model.amqp_vhost == PASS_THROUGH else model.amqp_vhost
        return model.model_copy(update={"name": host, "amqp_vhost": amqp_vhost})

    def resolved_virtual_hosts(self) -> Iterator[VirtualHost]:
        """Every entry of `virtual_hosts` with the defaults merged in; `"*"` under that name."""
        yield from self._by_name.values()


__all__ = [
    "PASS_THROUGH",
    "BrokerUrl",
    "ConfirmWindow",
    "DefaultUser",
    "GatewayConfig",
    "Group",
    "Listener",
    "Logging",
    "Part",
    "SocketAddress",
    "Tls",
    "Transactions",
    "Upstream",
    "VirtualHost",
    "VirtualHostEntry",
    "VirtualHostSettings",
]
