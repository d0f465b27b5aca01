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
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.config.addresses import BrokerUrl, SocketAddress
from gateway.config.admin import Admin
from gateway.config.journal import Journal
from gateway.config.listeners import Listener
from gateway.config.parts import Group, ReadableFile, Text, VirtualHostName, fits_short_string, laid_over
from gateway.config.policy import DestinationRule, Limits, Prefetch, QueueArguments
from gateway.config.quantities import Count, Duration, Factor, Size, Switch
from gateway.config.tls_files import check_certificates, check_key
from gateway.config.users import User

PASS_THROUGH = "*"  # noqa: S105 - no password
"""The key of `virtual_hosts` that stands for every host that is not configured."""


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

    @field_validator("ca_file", "cert_file")
    @classmethod
    def _holds_certificates(cls, value: Path | None) -> Path | None:
        return None if value is None else check_certificates(value)

    @field_validator("key_file")
    @classmethod
    def _belongs_to_the_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        """One that is to go with the certificate of another place is looked at when both are known."""
        certificate = info.data.get("cert_file")
        return value if value is None or certificate is None else check_key(value, certificate)


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


class CertificateUsers(Group):
    """Whom a client's certificate name stands for. The broker cannot be asked without a passcode."""

    users: Mapping[Text, User] = Field(
        default_factory=dict,
        description="Users by the name in the certificate, as the listener's certificate_login picks it.",
        json_schema_extra={"type": ["object", "null"]},
    )
    everyone: User | None = Field(
        None, description="The user for every certificate name that is not among users. null: such clients are refused."
    )

    @field_validator("users", mode="before")
    @classmethod
    def _left_empty(cls, value: object) -> object:
        return {} if value is None else value


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

    default_user: User | None = Field(
        default_factory=lambda: User(login="guest", passcode=SecretStr("guest")),
        description="Who a client is when its CONNECT has no login. null: such a client is refused.",
    )
    loopback_users: tuple[Text, ...] = Field(
        ("guest",),
        description="Users who may log in only from this machine itself. The gateway checks it, because the broker "
        "sees the gateway's address and not the client's.",
    )
    certificate_users: CertificateUsers = Field(
        default_factory=CertificateUsers, description="Whom a client's certificate name stands for."
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
    subscription_queues: Literal["auto", "shared", "exclusive"] = Field(
        "auto",
        description="Whether the queue of a /topic or /exchange subscription that is not durable belongs to its "
        "session alone. auto: from RabbitMQ 4.3 on, which refuses shared ones.",
    )
    default_nack_requeue: Annotated[bool, Switch()] = Field(
        True, description="Whether a NACK without a requeue header puts the message back into its queue."
    )
    max_frame_size: Annotated[int, Size()] = Field(
        4 << 20, description="The largest frame that a logged-in client may send: headers and body."
    )
    heart_beat_grace: Annotated[float, Factor(least=1, most=100)] = Field(
        2.0,
        description="How many heart-beat intervals a client may be silent. It is closed then, or up to half as long "
        "again later.",
    )
    conformance: Literal["plugin", "strict"] = Field(
        "plugin",
        description="plugin: most ERRORs leave the connection open. strict: every ERROR closes it, as STOMP demands.",
    )
    compatibility: Literal["released", "next"] = Field(
        "released",
        description="Whose names and texts are used: the released plugin's (up to 4.3), or those of its next version.",
    )
    hide_server_info: Annotated[bool, Switch()] = Field(False, description="Leave the server header out of CONNECTED.")
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
        description="Bytes waiting to be written to a client; above it a link of its own is paused.",
    )
    slow_consumer_timeout: Annotated[float, Duration(zero=False)] = Field(
        60.0, description="A client whose buffer stays full this long is closed."
    )
    prefetch: Prefetch = Field(
        default_factory=Prefetch, description="Unacknowledged messages that a subscription may have in hand."
    )
    queue_arguments: tuple[QueueArguments, ...] = Field(
        (), description="Arguments for queues that clients' frames declare, by destination."
    )
    on_queue_conflict: Literal["error", "use_existing"] = Field(
        "error",
        description="When a queue exists with other properties than a client asks for. use_existing takes it as it is.",
    )
    destination_rules: tuple[DestinationRule, ...] = Field(
        (), description="Who may send to and subscribe to what, and what other destination is meant by one."
    )
    limits: Limits = Field(default_factory=Limits, description="Sessions and rates, by user and by address.")
    token_renewal: Annotated[bool, Switch()] = Field(
        False,
        description="Passcodes are OAuth 2 tokens, and a client may renew its own with the extension frame TOKEN. "
        "Needs links: dedicated.",
    )
    journal: Journal = Field(
        default_factory=Journal, description="The traffic journal: what happened, for people and for the pipeline."
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
    admin: Admin = Field(
        default_factory=Admin, description="Metrics, health, the API and the status page: an address, or more, or off."
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
        if model is None or not host or not fits_short_string(host):
            return None
        amqp_vhost = host if model.amqp_vhost == PASS_THROUGH else model.amqp_vhost
        return model.model_copy(update={"name": host, "amqp_vhost": amqp_vhost})

    def resolved_virtual_hosts(self) -> Iterator[VirtualHost]:
        """Every entry of `virtual_hosts` with the defaults merged in; `"*"` under that name."""
        yield from self._by_name.values()
