"""What terminal commands show of sessions and links: columns, and clients' texts made harmless.

Every `--help` reads the columns, so nothing large is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.errors import UsageError
from gateway.texts import byte_size, count, duration, printable, three_digits

NOTHING: Final = "-"
"""Shown where there is no value."""


def clean(text: str) -> str:
    """Text that a client may have chosen, as `printable` shows it, and with each backslash doubled.

    So different texts never look the same.
    """
    return printable(text.replace("\\", "\\\\"))


def rate(per_second: float | None) -> str:
    """A number per second; None if it is not known yet."""
    if per_second is None:
        return NOTHING
    return f"{count(per_second) if per_second >= 1000 else three_digits(per_second)}/s"  # noqa: PLR2004


def since(moment: str, now: float) -> str:
    """The time from a moment (ISO 8601 with its offset from UTC) until ``now`` (seconds since the epoch)."""
    try:
        start = datetime.fromisoformat(moment).astimezone(UTC).timestamp()
    except ValueError:
        return clean(moment)
    return duration(max(0.0, now - start))


Item = Mapping[str, Any]
"""A session, a link or the like, as the API shows it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. ``show`` gets an item and the time, in seconds since the epoch."""

    title: str
    show: Callable[[Item, float], str]
    meaning: str = ""
    is_number: bool = False


def _text(name: str, title: str, meaning: str = "") -> Column:
    return Column(title, lambda item, _: _shown(item.get(name)), meaning)


def _count(name: str, title: str, meaning: str = "") -> Column:
    return Column(title, lambda item, _: count(item[name]), meaning, is_number=True)


def _size(name: str, title: str, meaning: str = "") -> Column:
    return Column(title, lambda item, _: byte_size(item[name]), meaning, is_number=True)


def _yes_or_no(name: str, title: str, meaning: str) -> Column:
    return Column(title, lambda item, _: "yes" if item[name] else "no", meaning)


def _since(name: str, meaning: str) -> Column:
    return Column("SINCE", lambda item, now: since(str(item[name]), now), meaning, is_number=True)


def _shown(value: object) -> str:
    return NOTHING if value is None or value == "" else clean(str(value))


SESSIONS: Final[Mapping[str, Column]] = {
    "id": _text("id", "ID", "as in the log, the journal and the names of AMQP connections"),
    "login": _text("login", "LOGIN", "the login of the client"),
    "virtual_host": _text("virtual_host", "VIRTUAL HOST", "the virtual host of the client"),
    "peer": _text("peer", "PEER", "the client's address and port"),
    "listener": _text("listener", "LISTENER", "the listener to which the client connected"),
    "transport": _text("transport", "TRANSPORT", "tcp or websocket"),
    "tls": _yes_or_no("tls", "TLS", "whether the client uses TLS"),
    "version": _text("version", "STOMP", "the version of STOMP"),
    "state": _text("state", "STATE", "the state of the session"),
    "holds": Column(
        "HOLDS", lambda item, _: _shown(",".join(item["holds"])), "why the gateway does not read the client now"
    ),
    "heart_beat": _text("heart_beat", "HEART-BEAT", "the agreed heart-beats, in milliseconds"),
    "subscriptions": _count("subscriptions", "SUBS", "subscriptions"),
    "unacknowledged": _count("unacknowledged", "UNACKED", "messages delivered and not acknowledged"),
    "unconfirmed": _count("unconfirmed", "UNCONFIRMED", "messages sent that the broker has not confirmed"),
    "transactions": _count("transactions", "TRANSACTIONS", "open transactions"),
    "frames_received": _count("frames_received", "FRAMES", "frames from the client"),
    "messages_published": _count("messages_published", "IN", "messages from the client"),
    "messages_delivered": _count("messages_delivered", "OUT", "messages to the client"),
    "bytes_received": _size("bytes_received", "BYTES IN", "bytes from the client"),
    "bytes_sent": _size("bytes_sent", "BYTES OUT", "bytes to the client"),
    "write_buffer_bytes": _size("write_buffer_bytes", "WAITING", "bytes that the client has not taken yet"),
    "connected_at": _since("connected_at", "how long ago the client connected"),
}
DEFAULT_SESSION_COLUMNS: Final = (
    "id", "login", "virtual_host", "peer", "version", "holds", "subscriptions", "unacknowledged", "messages_published",
    "messages_delivered", "connected_at",
)  # fmt: skip

# Of one session, in `sessions show`.
SUBSCRIPTIONS: Final = (
    _text("id", "ID"), _text("destination", "DESTINATION"), _text("ack", "ACK"), _text("queue", "QUEUE"),
    _count("delivered", "DELIVERED"), _count("redelivered", "REDELIVERED"), _count("unacknowledged", "UNACKNOWLEDGED"),
    _size("delivered_bytes", "BYTES"),
)  # fmt: skip
SENDS: Final = (
    _text("destination", "DESTINATION"), _text("kind", "KIND"), _count("messages", "MESSAGES"), _size("bytes", "BYTES"),
)  # fmt: skip

LINKS: Final[Mapping[str, Column]] = {
    "name": _text("name", "NAME", "the name of the connection in RabbitMQ's pages and tools"),
    "login": _text("login", "LOGIN", "the login of the connection"),
    "virtual_host": _text("virtual_host", "VIRTUAL HOST", "the clients' virtual host"),
    "purpose": _text("purpose", "PURPOSE", "publish, bulk, consume, select, own (of one session) or login"),
    "broker": _text("broker", "BROKER", "the broker's address and port"),
    "broker_version": _text("broker_version", "RABBITMQ", "the version of the broker"),
    "tls": _yes_or_no("tls", "TLS", "whether the connection uses TLS"),
    "channels": _count("channels", "CHANNELS", "open channels"),
    "sessions": _count("sessions", "SESSIONS", "sessions that use the connection"),
    "blocked": _yes_or_no("blocked", "BLOCKED", "whether an alarm of the broker blocks the connection"),
    "draining": _yes_or_no("draining", "DRAINING", "whether the connection closes when its channels have ended"),
    "write_buffer_bytes": _size("write_buffer_bytes", "WAITING", "bytes that the broker has not taken yet"),
    "opened_at": _since("opened_at", "how long ago the connection was opened"),
}
DEFAULT_LINK_COLUMNS: Final = (
    "login", "virtual_host", "purpose", "broker", "broker_version", "channels", "sessions", "blocked",
    "write_buffer_bytes", "opened_at",
)  # fmt: skip


def _host_of(name: str) -> Callable[[Item, float], str]:
    return lambda item, _: _shown(str(item[name]).rpartition(":")[0].strip("[]"))


def _port_of(name: str) -> Callable[[Item, float], str]:
    return lambda item, _: _shown(str(item[name]).rpartition(":")[2])


PLUGIN_COLUMNS: Final[Mapping[str, Column]] = {
    name: Column(name, show)
    for name, show in {
        "session_id": SESSIONS["id"].show,
        "conn_name": lambda item, _: clean(f"{item['peer']} -> {item['listener']}"),
        "connection_state": SESSIONS["state"].show,
        "auth_login": SESSIONS["login"].show,
        "vhost": SESSIONS["virtual_host"].show,
        "peer_addr": _host_of("peer"),
        "peer_host": _host_of("peer"),
        "peer_port": _port_of("peer"),
        "host": _host_of("listener"),
        "port": _port_of("listener"),
        "protocol": lambda item, _: f"{'Web ' * (item['transport'] == 'websocket')}STOMP {_shown(item['version'])}",
        "ssl": lambda item, _: str(bool(item["tls"])).lower(),
        # A client that has not sent CONNECT has no session here.
        "implicit_connect": lambda _, __: "false",
    }.items()
}
"""Columns of `rabbitmqctl list_stomp_connections` that have another name there than in SESSIONS."""


def chosen_columns(option: str | None, known: Mapping[str, Column], default: Sequence[str]) -> list[Column]:
    """The columns that the value of --columns names. Raises `UsageError` for an unknown one, and if none is named."""
    names = default if option is None else [name.strip() for name in option.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        wrong = ", ".join(clean(name) for name in unknown) or "none given"
        raise UsageError(f"--columns: {wrong}. There are {', '.join(known)}.")
    return [known[name] for name in names]


def meanings(columns: Mapping[str, Column]) -> str:
    """A line for each column, for --help."""
    return "\n".join(f"  {name:<19} {column.meaning}" for name, column in columns.items())
