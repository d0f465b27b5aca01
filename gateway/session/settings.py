"""What a session must know of its virtual host. The server fills it from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Bounds of the transactions of one session; ``max_bytes`` in octets, ``max_age`` in seconds."""

    max_open: int = 100
    max_actions: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    max_age: float = 600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a virtual host that change what a session does.

    ``virtual_host`` is its STOMP name. ``default_login`` and ``default_passcode`` stand in for absent headers of
    CONNECT; None when there is no default user. ``confirm_messages`` and ``confirm_bytes`` bound what is published and
    not yet confirmed, ``auto_ack_window`` the deliveries in hand of a subscription with ack:auto. Sizes in octets.
    """

    virtual_host: str
    default_login: bytes | None = b"guest"
    default_passcode: bytes | None = field(default=b"guest", repr=False)
    default_topic_exchange: bytes = b"amq.topic"
    default_nack_requeue: bool = True
    max_frame_size: int = 4 * 1024 * 1024
    confirm_messages: int = 10_000
    confirm_bytes: int = 64 * 1024 * 1024
    auto_ack_window: int = 2000
    transactions: TransactionLimits = TransactionLimits()


Resolve = Callable[[str | None], Settings | None]
"""Finds the settings for the host header of CONNECT (None when absent); None when it means no virtual host."""
