"""What a session must know of its virtual host. The server fills it from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.patterns import Pattern


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Bounds of the transactions of one session; ``max_bytes`` in bytes, ``max_age`` in seconds."""

    max_open: int = 100
    max_actions: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    max_age: float = 600.0


@dataclass(frozen=True, slots=True)
class User:
    """A user of the broker; the passcode never shows."""

    login: bytes
    passcode: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DestinationRule:
    """What clients may do with the destinations that fit ``pattern``, or which other destination they mean by them.

    ``denies`` refuses them; ``to`` is put in their place, with what the stars of ``pattern`` stood for. ``on_send`` and
    ``on_subscribe`` say which frames it is about, ``logins`` whose; none means everybody's. ``mandatory``: a message
    that reaches no queue is an ERROR.
    """

    pattern: Pattern
    denies: bool = False
    to: Pattern | None = None
    on_send: bool = True
    on_subscribe: bool = True
    logins: tuple[Pattern, ...] = ()
    mandatory: bool = False


@dataclass(frozen=True, slots=True)
class QueueArgumentDefaults:
    """Arguments for the queues behind the destinations that fit ``pattern``, unless a client gives its own."""

    pattern: Pattern
    arguments: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a virtual host that change what a session does.

    ``virtual_host`` is its STOMP name. ``default_user`` stands in for absent headers of CONNECT; None when there is
    none. ``loopback_users`` may log in from this machine only. ``certificate_users`` gives the user that the name in a
    client's certificate stands for, and ``certificate_everyone`` the one for all other names. ``exclusive_queues`` says
    whether queues of subscriptions that are not durable belong to their session alone; None: as the broker's version
    wants it. ``strict`` closes after every ERROR. ``next_release`` uses the names and texts of the plugin's next
    version instead of its released ones. ``confirm_messages`` and ``confirm_bytes`` bound what is published and not yet
    confirmed, ``auto_ack_window`` the deliveries in hand of a subscription with ack:auto. Sizes in bytes.

    ``default_prefetch`` is for a SUBSCRIBE without prefetch-count, ``max_prefetch`` the most that one may ask for; 0 is
    no limit. Of ``destination_rules`` and ``queue_defaults`` the first that fits counts. ``takes_existing_queues``: a
    queue that exists with other properties than a client asks for serves as it is. ``token_renewal``: passcodes are
    tokens, and the frame TOKEN brings another.
    """

    virtual_host: str
    default_user: User | None = User(b"guest", b"guest")
    loopback_users: frozenset[bytes] = frozenset((b"guest",))
    certificate_users: Mapping[str, User] = field(default_factory=dict)
    certificate_everyone: User | None = None
    default_topic_exchange: bytes = b"amq.topic"
    default_nack_requeue: bool = True
    exclusive_queues: bool | None = None
    strict: bool = False
    next_release: bool = False
    hide_server_info: bool = False
    max_frame_size: int = 4 * 1024 * 1024
    confirm_messages: int = 10_000
    confirm_bytes: int = 64 * 1024 * 1024
    auto_ack_window: int = 2000
    transactions: TransactionLimits = TransactionLimits()
    default_prefetch: int = 0
    max_prefetch: int = 0
    destination_rules: tuple[DestinationRule, ...] = ()
    queue_defaults: tuple[QueueArgumentDefaults, ...] = ()
    takes_existing_queues: bool = False
    token_renewal: bool = False


Resolve = Callable[[str | None], Settings | None]
"""Finds the settings for the host header of CONNECT (None when absent); None when it means no virtual host."""
