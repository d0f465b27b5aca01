"""A virtual host: every setting that it may have, and the values that a session and the server read.

`defaults` and each entry of `virtual_hosts` have the same keys, `VirtualHostSettings`: one flat mapping of the file,
so it has many fields. `VirtualHost` is an entry with the defaults merged in. The session reads it too and does no input
or output, so this module and those that it imports do none (ADR 16). Editors show the fields' docstrings, by way of
the JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator

from gateway.config.addresses import BrokerUrl
from gateway.config.base_models import (
    CertificateFile,
    EncodedText,
    KeyFile,
    MergeableModel,
    Text,
    VirtualHostName,
    made_from_text,
)
from gateway.config.broker_user import User
from gateway.config.journal_settings import Archive, JournalSettings
from gateway.config.rules import DestinationRule, OnSendError, QueueArguments
from gateway.config.scalars import Bytes, Count, Duration, Factor, Flag, Number, Seconds, SecondsAboveZero, mistake

# Words of printable ASCII, without the characters that have to be escaped in a header.
_SERVER_HEADER: Final = re.compile(r"(?=.{1,255}\Z)[!-9;-\[\]-~]+(?: [!-9;-\[\]-~]+)*\Z")


# Bounds of transactions in the plugin's next version.
_NEXT_TRANSACTIONS: Final = {"max_open": 16, "max_actions": 1024}


def _server_header(text: str) -> bytes:
    if _SERVER_HEADER.match(text) is None:
        raise mistake(
            "A server header has at most 255 printable ASCII characters, in words with one space between them, and "
            "neither colon nor backslash.",
            "Write NAME/VERSION, and more words after it as you like.",
        )
    return text.encode()


ServerHeader = Annotated[bytes, made_from_text(bytes, _server_header, bytes.decode)]


class UpstreamTls(MergeableModel):
    """TLS toward a broker, for amqps URLs."""

    ca_file: CertificateFile | None = None
    """Certificates (PEM) to trust instead of the system's. Relative to this file's directory."""
    cert_file: CertificateFile | None = None
    """The gateway's own certificate (PEM), where the broker asks for one. Needs key_file."""
    key_file: KeyFile | None = None
    """The private key (PEM, not encrypted) of cert_file."""
    verify: Flag = True
    """Check the broker's certificate and its host name. false is for trials only."""


class Upstream(MergeableModel):
    """A RabbitMQ, as one or several nodes."""

    urls: tuple[BrokerUrl, ...] = Field((BrokerUrl("amqp", "127.0.0.1", 5672),), min_length=1)
    """The nodes of one RabbitMQ: amqp://host:port, or amqps:// with TLS. No credentials, no path."""
    order: Literal["as-written", "shuffle"] = "as-written"
    """as-written: each link goes to the first URL that answers. shuffle: to any that answers, to spread the load."""
    connect_timeout: SecondsAboveZero = 5.0
    """Limit for one URL: name lookup, TCP, TLS and login together. Other URLs are tried before it has passed."""
    operation_timeout: SecondsAboveZero = 30.0
    """How long the broker may take to answer what a session waits for; then the session ends with an ERROR."""
    heartbeat: Annotated[float, Duration(most=65535, whole=True)] = 60.0
    """AMQP heart-beat interval in whole seconds; the broker may ask for less. 0 is none."""
    ride_through: Seconds = 60.0
    """How long sessions outlive the loss of their connection to the broker: they are held, and everything comes back
    when a broker answers. 0: they end at once, with an ERROR."""
    tls: UpstreamTls = Field(default_factory=UpstreamTls)
    """TLS for amqps URLs."""


class CertificateUsers(MergeableModel):
    """The user that the name in a client's certificate stands for. The broker cannot be asked without a passcode."""

    users: Mapping[Text, User] = Field(default_factory=dict, json_schema_extra={"type": ["object", "null"]})
    """Users by the name in the certificate, as the listener's certificate_login picks it."""
    everyone: User | None = None
    """The user for every certificate name that is not among users. null: such clients are refused."""

    @field_validator("users", mode="before")
    @classmethod
    def _left_empty(cls, value: object) -> object:
        return {} if value is None else value


class ConfirmWindow(MergeableModel):
    """How much one client may have sent without the broker's confirm; beyond it the gateway stops reading it."""

    messages: Number = 10_000
    """Messages waiting for the broker's confirm."""
    bytes: Bytes = 64 << 20
    """Bytes of bodies, and of large headers, waiting for the broker's confirm."""


class TransactionLimits(MergeableModel):
    """Bounds of the transactions that one client may hold open. Beyond one of them: an ERROR."""

    max_open: Number = 100
    """Transactions open at once."""
    max_actions: Number = 10_000
    """SEND, ACK and NACK frames in one transaction."""
    max_bytes: Bytes = 64 << 20
    """Bytes held by all open transactions together."""
    max_age: SecondsAboveZero = 600.0
    """A transaction open this long is aborted."""


class Prefetch(MergeableModel):
    """How many unacknowledged messages a subscription may have in hand (prefetch-count)."""

    default: Annotated[int, Count(most=65535)] | None = None
    """For a SUBSCRIBE without prefetch-count. null: no limit, as with the plugin."""
    max: Annotated[int, Count(most=65535)] | None = None
    """The most that a client may ask for: more, or no limit, becomes this. null: whatever it asks for."""


class Limit(MergeableModel):
    """What one user, or one address, may have and do in a virtual host. null: without limit."""

    sessions: Number | None = None
    """Sessions at once. One more is refused with an ERROR."""
    messages_per_second: Number | None = None
    """SEND frames per second, all its sessions together. Beyond it they are read more slowly."""
    bytes_per_second: Bytes | None = None
    """Bytes of frames per second, all its sessions together. Beyond it they are read more slowly."""
    burst: SecondsAboveZero = 2.0
    """How many seconds' worth may come at once after a rest."""


class Limits(MergeableModel):
    """What clients of a virtual host may have and do."""

    sessions: Number | None = None
    """Sessions of the virtual host at once. null: without limit."""
    user: Limit = Field(default_factory=Limit)
    """For each login."""
    address: Limit = Field(default_factory=Limit)
    """For each client address."""


class VirtualHostSettings(MergeableModel):
    """Every setting that a virtual host may have of its own; `defaults` gives the value for all others."""

    default_user: User | None = Field(default_factory=lambda: User(login="guest", passcode=SecretStr("guest")))
    """Who a client is when its CONNECT has no login. null: such a client is refused."""
    loopback_users: tuple[EncodedText, ...] = (b"guest",)
    """Users who may log in only from this machine itself. The gateway checks it, because the broker sees the gateway's
    address and not the client's."""
    certificate_users: CertificateUsers = Field(default_factory=CertificateUsers)
    """The user that the name in a client's certificate stands for."""
    links: Literal["shared", "dedicated"] = "shared"
    """shared: clients with the same virtual host and credentials share AMQP connections. dedicated: AMQP connections
    for each client."""
    bulk_links: Flag = True
    """Whether clients on shared connections that send much move their messages to a further connection of the same
    login while they do, so that others of the login need not wait for them."""
    login_cache: Seconds = 60.0
    """A login on a shared link is trusted this long after the broker accepted it. 0 asks always."""
    recheck: Seconds = 0.0
    """How often the broker is asked again whether a session's login, and what it consumes, are still allowed. What is
    not ends with an ERROR. 0: never, as with the plugin, and RabbitMQ goes on delivering."""
    default_topic_exchange: EncodedText = b"amq.topic"
    """The exchange behind /topic/ destinations."""
    subscription_queues: Literal["auto", "shared", "exclusive"] = "auto"
    """Whether the queue of a /topic or /exchange subscription that is not durable belongs to its session alone. auto:
    from RabbitMQ 4.3 on, as its plugin does."""
    default_nack_requeue: Flag = True
    """Whether a NACK without a requeue header puts the message back into its queue."""
    nack_counts: Flag = False
    """Whether a NACK that puts a message back counts toward the delivery-limit of a quorum queue with RabbitMQ 4.3 and
    later, too, so that a message that clients refuse again and again is dead-lettered. Before 4.3 it always counts."""
    max_frame_size: Bytes = 4 << 20
    """The largest frame that a logged-in client may send: headers and body."""
    heart_beat_grace: Annotated[float, Factor(least=1, most=100)] = 2.0
    """How many heart-beat intervals a client may be silent. It is closed then, or up to half as long again later."""
    conformance: Literal["plugin", "strict"] = "plugin"
    """plugin: most ERRORs leave the connection open. strict: every ERROR closes it, as STOMP demands."""
    compatibility: Literal["released", "next"] = "released"
    """Which plugin is the model: the released one (up to 4.3), or its next version where that differs on purpose."""
    unsubscribe_deletes: Literal["named", "own"] = "named"
    """Which queue a durable UNSUBSCRIBE of a /topic deletes. named: the one that its own headers name, as with the
    plugin, even if it belongs to another client. own: that of the subscription. With compatibility: next it is own."""
    hide_server_info: Flag = False
    """Leave the server header out of CONNECTED."""
    server_header: ServerHeader | None = None
    """The server header of CONNECTED. null: RabbitMQ/<version of the broker> stomp-gateway/<version>."""
    confirms: Literal["always", "on_receipt"] = "always"
    """always: everything is published with the broker's confirms, so that nothing is lost with a connection to the
    broker. on_receipt: from a client's first receipt or transaction on; what was sent before may be lost unnoticed.
    With ride_through 0 it is on_receipt."""
    confirm_window: ConfirmWindow = Field(default_factory=ConfirmWindow)
    """What one client may have sent without the broker's confirm."""
    auto_ack_window: Annotated[int, Count(most=65535)] = 2000
    """Messages that a subscription with ack:auto may have in hand before the gateway settles them (the AMQP
    prefetch)."""
    transactions: TransactionLimits = Field(default_factory=TransactionLimits)
    """Bounds of the transactions that one client may hold open."""
    client_buffer: Bytes = 1 << 20
    """Bytes waiting to be written to a client; above it a pausable link pauses."""
    slow_consumer_timeout: SecondsAboveZero = 60.0
    """A client whose buffer stays full this long is closed."""
    prefetch: Prefetch = Field(default_factory=Prefetch)
    """Unacknowledged messages that a subscription may have in hand."""
    queue_arguments: tuple[QueueArguments, ...] = ()
    """Arguments for queues that clients' frames declare, by destination."""
    selectors: Flag = False
    """Whether the selector header of a SUBSCRIBE to /topic or /exchange selects the messages that the client gets.
    false: it is ignored, as with the plugin."""
    on_queue_conflict: Literal["error", "use_existing"] = "error"
    """When a queue exists with other properties than a client asks for. use_existing takes it as it is."""
    on_send_error: OnSendError = Field(default_factory=OnSendError)
    """Whether a session ends when the broker refuses what it sends, or when a SEND is larger than max_frame_size."""
    hold_sends_for: SecondsAboveZero | None = None
    """How long a client waits while the broker takes no messages. Then its SENDs are answered with an ERROR until the
    broker takes messages again. null: it waits for as long as that takes."""
    topic_slashes: Literal["error", "dots", "dots_and_back"] = "error"
    """What /topic/a/b means. error: nothing, as with the plugin. dots: /topic/a.b. dots_and_back: the same, and the
    destination of a MESSAGE has slashes, too."""
    destination_rules: tuple[DestinationRule, ...] = ()
    """Who may send to and subscribe to what, and what other destination is meant by one."""
    limits: Limits = Field(default_factory=Limits)
    """Sessions and rates, by user and by address."""
    token_renewal: Flag | None = None
    """Passcodes are OAuth 2 tokens: a client may renew its own with the extension frame TOKEN, and its session ends
    with it. null: where the broker ends connections whose token has expired, as RabbitMQ does from 4.3 on."""
    journal: JournalSettings = Field(default_factory=JournalSettings)
    """The traffic journal: what happened, for people and for the pipeline."""
    archives: tuple[Archive, ...] = ()
    """Streams that keep a copy of the messages to some destinations, for the pipeline."""

    @property
    def strict(self) -> bool:
        """Whether every ERROR closes the connection."""
        return self.conformance == "strict"

    @property
    def next_release(self) -> bool:
        """Whether the plugin's next version is the model."""
        return self.compatibility == "next"

    @property
    def deletes_own_queue(self) -> bool:
        """Whether a durable UNSUBSCRIBE deletes the queue of its subscription, whatever its headers name."""
        return self.next_release or self.unsubscribe_deletes == "own"

    @property
    def transaction_limits(self) -> TransactionLimits:
        """Bounds of transactions. What the configuration leaves out is as small as in the model."""
        limits = self.transactions
        if not self.next_release:
            return limits
        return limits.model_copy(
            update={key: most for key, most in _NEXT_TRANSACTIONS.items() if key not in limits.model_fields_set}
        )

    @property
    def exclusive_queues(self) -> bool | None:
        """Whether queues of subscriptions that are not durable are exclusive. None: as the broker's version wants."""
        return None if self.subscription_queues == "auto" else self.subscription_queues == "exclusive"

    @property
    def takes_existing_queues(self) -> bool:
        """Whether a queue with other properties than a client asks for is used as it is."""
        return self.on_queue_conflict == "use_existing"


class VirtualHostEntry(VirtualHostSettings):
    """A virtual host: its own names, its broker, and whatever it sets differently from `defaults`."""

    aliases: tuple[VirtualHostName, ...] = ()
    """Other values of CONNECT's host header that mean this virtual host: usually DNS names."""
    upstream: Upstream | None = None
    """This virtual host's own broker. What it does not say comes from the upstream at the top."""
    amqp_vhost: VirtualHostName | None = None
    """The broker's name for this virtual host, where it differs from the key."""


class VirtualHost(VirtualHostSettings):
    """A virtual host with all its settings: what the session and the server need to know."""

    name: str
    """The key in `virtual_hosts`; for a host that was passed through, the host itself."""
    amqp_vhost: str = Field(default_factory=lambda fields: fields["name"])
    """The broker's name for it."""
    upstream: Upstream = Field(default_factory=Upstream)
    """Its broker."""


FindVirtualHost = Callable[[str | None], VirtualHost | None]
"""Finds the virtual host that CONNECT's host header means (None when absent); None when it means none."""
