"""Sessions, as the API shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.admin.listing import Listing, contains, is_exactly
from gateway.journal.privacy import shown
from gateway.session.context import Hold
from gateway.session.destinations import KIND_NAMES
from gateway.times import iso

if TYPE_CHECKING:
    from gateway.server.client.connection import ClientConnection
    from gateway.session.subscription import Subscription

# What one session shows at most: the destinations it sends most to, and its subscriptions.
_MAX_SENDS: Final = 200
_MAX_SUBSCRIPTIONS: Final = 1000
# And in a list of sessions, each.
_MAX_QUEUES: Final = 10


def _identity(client: ClientConnection) -> str:
    return client.session.identity.decode()


def _virtual_host(client: ClientConnection) -> str | None:
    return client.session.settings.name or None


def _login(client: ClientConnection) -> str | None:
    login = client.session.login
    return None if login is None else shown(login)


def _peer(client: ClientConnection) -> str:
    return client.stats.peer


def published(client: ClientConnection) -> int:
    """Messages that a session sent."""
    return sum(counter.published for counter in client.session.traffic.sends.values())


def delivered(client: ClientConnection) -> int:
    """Messages that a session got."""
    subscriptions = client.session.subscriptions
    past = sum(counter.delivered for counter in subscriptions.past.values())
    return past + sum(subscription.stats.delivered for subscription in subscriptions.all)


def unacknowledged(client: ClientConnection) -> int:
    """Messages that a session got and that are not settled."""
    return sum(subscription.stats.outstanding for subscription in client.session.subscriptions.all)


SESSIONS: Final[Listing[ClientConnection]] = Listing(
    {
        "id": _identity,
        "virtual_host": _virtual_host,
        "login": _login,
        "peer": _peer,
        "transport": lambda client: client.stats.transport,
        "tls": lambda client: client.stats.is_encrypted,
        "version": lambda client: client.session.version.decode() if client.session.login is not None else None,
        "state": lambda client: client.session.state.value,
        "connected_at": lambda client: iso(client.stats.connected_at, "milliseconds"),
        "heart_beat": lambda client: client.session.heartbeats.header.decode(),
        "listener": lambda client: str(client.stats.listener.address),
        "holds": lambda client: sorted(hold.value for hold in client.session.holds),
        "awaited_queues": lambda client: [shown(name.encode()) for name in client.session.awaited_queues[:_MAX_QUEUES]],
        "subscriptions": lambda client: len(client.session.subscriptions.all),
        "unacknowledged": unacknowledged,
        "unconfirmed": lambda client: len(client.session.confirms),
        "transactions": lambda client: len(client.session.context.transactions),
        "frames_received": lambda client: client.session.traffic.frames_received,
        "messages_published": published,
        "messages_delivered": delivered,
        "bytes_received": lambda client: client.stats.bytes_in,
        "bytes_sent": lambda client: client.stats.bytes_out,
        "write_buffer_bytes": lambda client: client.write_buffer,
    },
    {
        "virtual_host": is_exactly(_virtual_host, lambda client: client.stats.label or None),
        "login": is_exactly(_login),
        "hold": lambda client, wanted: any(hold.value == wanted for hold in client.session.holds),
        "q": contains(_identity, _login, _peer, _virtual_host),
    },
    "connected_at",
    ("id",),
    unsorted=frozenset(("holds", "awaited_queues")),
    choices={"hold": tuple(hold.value for hold in Hold)},
)


def detail(client: ClientConnection) -> dict[str, Any]:
    """One session, with its destinations and subscriptions."""
    session, recorder = client.session, client.stats.recorder
    sends = sorted(session.traffic.sends.items(), key=lambda send: send[1].published, reverse=True)[:_MAX_SENDS]
    journal = None if recorder is None else {"boot": recorder.writer.boot, "session": recorder.number}
    return {
        **SESSIONS.rendered(client),
        "subscriptions_list": [_subscription(each) for each in list(session.subscriptions.all)[:_MAX_SUBSCRIPTIONS]],
        "sends": [
            {
                "destination": shown(destination),
                "kind": KIND_NAMES[kind],
                "messages": counter.published,
                "bytes": counter.published_bytes,
            }
            for (destination, kind), counter in sends
        ],
        "journal": journal,
    }


def _subscription(subscription: Subscription) -> dict[str, Any]:
    stats = subscription.stats
    return {
        "id": None if subscription.identifier is None else shown(subscription.identifier),
        "destination": shown(subscription.address),
        "ack": subscription.mode.value.decode(),
        "queue": subscription.queue,
        "awaits_queue": subscription.awaits_queue,
        "delivered": stats.delivered,
        "redelivered": stats.redelivered,
        "unacknowledged": stats.outstanding,
        "delivered_bytes": stats.delivered_bytes,
    }
