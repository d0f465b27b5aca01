"""The gateway as a whole, its virtual hosts, links and destinations, as the API shows them.

There may be thousands of sessions, so a few are counted at a time and the event loop serves messages in between. The
totals are still right: those of ended sessions and the list of open ones are taken at the same moment, and a session
that ends before it is counted keeps its counters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway import __version__, commit
from gateway.admin.listing import Listing, contains, is_exactly
from gateway.config.addresses import BrokerUrl, SocketAddress
from gateway.journal.privacy import shown
from gateway.server.stats import NOT_LOGGED_IN, Stats
from gateway.session.context import State
from gateway.session.destinations import KIND_NAMES
from gateway.session.traffic import OTHER, TrafficCounter
from gateway.times import iso

if TYPE_CHECKING:
    from gateway.config.model import GatewayConfig
    from gateway.server.broker.link import Link
    from gateway.server.client.connection import ClientConnection
    from gateway.server.process.gateway import Gateway
    from gateway.server.process.readiness import Readiness
    from gateway.server.process.served import Served
    from gateway.server.stats import VirtualHostStats
    from gateway.session.destinations import DestinationKind

# Destinations that are listed by name.
_MAX_DESTINATIONS: Final = 10_000

# Sessions that are counted before the event loop has a turn.
_AT_ONCE: Final = 100

_ItemT = TypeVar("_ItemT")


async def in_turns(items: tuple[_ItemT, ...]) -> AsyncIterator[_ItemT]:
    """Iterate over clients, for example, and let the event loop do something else after every hundred of them."""
    for number, item in enumerate(items):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        yield item


class StatsSnapshot:
    """The stats of a gateway at one moment. Everything is by label of virtual host, or by that and a second key."""

    def __init__(self, gateway: Gateway) -> None:
        self.totals: dict[str, Stats] = gateway.stats.past()
        self.states = Counter({state.value: 0 for state in State})
        self.sessions = Counter(dict.fromkeys(gateway.stats.hosts, 0))
        self.unconfirmed, self.unacknowledged = self.sessions.copy(), self.sessions.copy()
        self.subscriptions: Counter[tuple[str, ...]] = Counter()
        self.awaiting = self.sessions.copy()
        # A hold that has happened before is shown as 0 when no session has it, so that a graph shows its end.
        known_holds = ((label, reason) for label, host in gateway.stats.hosts.items() for reason in host.holds)
        self.holds: Counter[tuple[str, ...]] = Counter(dict.fromkeys(known_holds, 0))
        self._clients = tuple(gateway.clients)
        self.states[State.CLOSED.value] += gateway.closing

    async def take(self) -> StatsSnapshot:
        """Add the sessions that are open, and return the snapshot itself."""
        async for client in in_turns(self._clients):
            self._add(client)
        self._clients = ()
        return self

    def _add(self, client: ClientConnection) -> None:
        stats, session = client.stats, client.session
        label = stats.label
        if session.login is not None:
            # A reload may have added the virtual host meanwhile.
            stats.add_to(self.totals.setdefault(label, Stats()))
        self.states[session.state.value] += 1
        if session.state is State.CLOSED:
            return
        self.sessions[label] += 1
        self.unconfirmed[label] += len(session.confirms)
        for subscription in session.subscriptions.all:
            self.subscriptions[label, subscription.mode.value.decode()] += 1
            self.unacknowledged[label] += subscription.ledger.outstanding
            self.awaiting[label] += subscription.awaits_queue
        for hold in session.holds:
            self.holds[label, hold.value] += 1

    @property
    def holds_by_reason(self) -> dict[str, int]:
        """Sessions that are held now."""
        counts: Counter[str] = Counter()
        for (_, reason), count in self.holds.items():
            if count:
                counts[reason] += count
        return dict(counts)


def head_of(served: Served, readiness: Readiness, uptime: int) -> dict[str, Any]:
    """How an overview begins, of a gateway or of several workers. ``uptime`` is in microseconds."""
    return {
        "version": __version__,
        "commit": commit(),
        "node": served.node,
        "started_at": iso(served.started_at, "milliseconds"),
        "uptime_seconds": round(uptime / 1e6, 3),
        "log_level": served.log_level.shown(),
        "ready": readiness.is_ready,
        "reasons": list(readiness.reasons),
        "virtual_hosts_down": readiness.down,
    }


async def overview(gateway: Gateway, readiness: Readiness) -> dict[str, Any]:
    """The gateway as a whole, with its readiness as of now."""
    snapshot = await StatsSnapshot(gateway).take()
    stats, links = gateway.stats, gateway.pool.links
    p50, p99 = stats.confirm_latency(0.5), stats.confirm_latency(0.99)
    errors = sum((host.errors for host in stats.hosts.values()), Counter[str]())
    return {
        **head_of(gateway, readiness, gateway.journal.clock.time - gateway.started_at),
        "totals": totals_of(snapshot.totals.values(), stats.hosts, errors.total()),
        "sessions": snapshot.sessions.total() - snapshot.sessions[NOT_LOGGED_IN],
        "connections": snapshot.states.total(),
        "subscriptions": snapshot.subscriptions.total(),
        "links": len(links),
        "channels": sum(link.channels for link in links),
        "unconfirmed": snapshot.unconfirmed.total(),
        "unacknowledged": snapshot.unacknowledged.total(),
        "holds": snapshot.holds_by_reason,
        "errors": dict(errors),
        "confirm_latency_seconds": None if p50 is None else {"p50": p50, "p99": p99},
        "connections_refused": dict(stats.connections_refused),
    }


def totals_of(totals: Collection[Stats], hosts: Mapping[str, VirtualHostStats], errors: int) -> dict[str, int]:
    """What a gateway has counted, over all virtual hosts."""
    traffic = TrafficCounter()
    for each in totals:
        traffic.add(each.traffic)
    return {
        "frames_received": sum(each.frames_received.total() for each in totals),
        "messages_published": traffic.published,
        "published_bytes": traffic.published_bytes,
        "messages_delivered": traffic.delivered,
        "delivered_bytes": traffic.delivered_bytes,
        "messages_confirmed": sum(each.confirmed for each in totals),
        "messages_redelivered": traffic.redelivered,
        "messages_acknowledged": traffic.acknowledged,
        "errors": errors,
        "sessions_started": sum(host.started.total() for host in hosts.values()),
        "sessions_ended": sum(host.ended.total() for label, host in hosts.items() if label != NOT_LOGGED_IN),
        "bytes_received": sum(each.bytes_in for each in totals),
        "bytes_sent": sum(each.bytes_out for each in totals),
    }


# Virtual hosts.


VIRTUAL_HOSTS: Final[Listing[dict[str, Any]]] = Listing(
    {
        name: itemgetter(name)
        for name in (
            "name", "aliases", "upstream", "up", "brokers", "amqp_vhost", "limits", "sessions", "subscriptions",
            "links", "published", "delivered", "errors", "holds",
        )
    },
    {"q": contains(itemgetter("name"), lambda row: " ".join(row["aliases"]))},
    "name",
    ("name",),
    unsorted=frozenset(("aliases", "upstream", "brokers", "errors", "holds", "limits")),
)  # fmt: skip


async def configured_virtual_hosts(config: GatewayConfig, readiness: Readiness) -> list[dict[str, Any]]:
    """Every configured virtual host, as the API shows it, without what a gateway counts."""
    rows = []
    async for host in in_turns(tuple(config.resolved_virtual_hosts())):
        brokers = [
            {
                "broker": broker_name(state.broker),
                "up": state.is_up,
                "reason": state.reason or None,
                "links": state.links,
                "alarm": state.alarm or None,
            }
            for state in readiness.virtual_hosts.get(host.name, ())
        ]
        rows.append(
            {
                "name": host.name,
                "aliases": list(config.virtual_hosts[host.name].aliases),
                "upstream": [str(url) for url in host.upstream.urls],
                "up": any(broker["up"] for broker in brokers),
                "brokers": brokers,
                "amqp_vhost": host.amqp_vhost,
                "limits": host.limits.model_dump(mode="json"),
            }
        )
    return rows


async def virtual_hosts(gateway: Gateway, readiness: Readiness) -> list[dict[str, Any]]:
    """Every configured virtual host, as the API shows it."""
    # The configuration is that of the same moment: a reload may come meanwhile.
    config, snapshot = gateway.config, await StatsSnapshot(gateway).take()
    rows = await configured_virtual_hosts(config, readiness)
    links = Counter(gateway.stats.label(link.virtual_host) for link in gateway.pool.links)
    subscriptions: Counter[str] = Counter()
    for (label, _), count in snapshot.subscriptions.items():
        subscriptions[label] += count
    holds: dict[str, dict[str, int]] = {}
    for (label, reason), count in snapshot.holds.items():
        if count:
            holds.setdefault(label, {})[reason] = count
    for row in rows:
        name = row["name"]
        traffic = snapshot.totals[name].traffic
        row["sessions"], row["subscriptions"], row["links"] = snapshot.sessions[name], subscriptions[name], links[name]
        row["published"], row["delivered"] = traffic.published, traffic.delivered
        row["errors"], row["holds"] = dict(gateway.stats.host(name).errors), holds.get(name, {})
    return rows


# Links.


def broker_name(broker: BrokerUrl) -> str:
    """How links, metrics and virtual hosts name a broker: host:port."""
    return str(SocketAddress(broker.host, broker.port))


def _broker(link: Link) -> str:
    return broker_name(link.broker)


LINKS: Final[Listing[Link]] = Listing(
    {
        "name": lambda link: link.client_properties.connection_name,
        "virtual_host": lambda link: link.virtual_host,
        "login": lambda link: link.client_properties.login,
        "purpose": lambda link: link.purpose,
        "broker": _broker,
        "broker_version": lambda link: ".".join(map(str, link.tuning.broker_version)) or None,
        "tls": lambda link: link.broker.tls,
        "channels": lambda link: link.channels,
        "sessions": lambda link: len(link.users),
        "blocked": lambda link: link.blocked,
        "draining": lambda link: link.is_draining,
        "write_buffer_bytes": lambda link: link.write_buffer,
        "opened_at": lambda link: iso(link.opened_at, "milliseconds"),
    },
    {
        "virtual_host": is_exactly(lambda link: link.virtual_host),
        "login": is_exactly(lambda link: link.client_properties.login),
        "purpose": is_exactly(lambda link: link.purpose),
        "q": contains(lambda link: link.client_properties.connection_name, _broker),
    },
    "name",
    ("name",),
)


# Destinations.


@dataclass(slots=True)
class DestinationRow:
    """One destination, over all sessions that are open."""

    virtual_host: str
    destination: str
    kind: str
    traffic: TrafficCounter = field(default_factory=TrafficCounter)
    subscriptions: int = 0


DESTINATIONS: Final[Listing[DestinationRow]] = Listing(
    {
        "virtual_host": lambda row: row.virtual_host,
        "destination": lambda row: row.destination,
        "kind": lambda row: row.kind,
        "published": lambda row: row.traffic.published,
        "published_bytes": lambda row: row.traffic.published_bytes,
        "delivered": lambda row: row.traffic.delivered,
        "delivered_bytes": lambda row: row.traffic.delivered_bytes,
        "subscriptions": lambda row: row.subscriptions,
    },
    {
        "virtual_host": is_exactly(lambda row: row.virtual_host),
        "kind": is_exactly(lambda row: row.kind),
        "q": contains(lambda row: row.destination),
    },
    "destination",
    ("virtual_host", "destination", "kind"),
    choices={"kind": tuple(KIND_NAMES.values())},
)


async def destinations(gateway: Gateway) -> list[DestinationRow]:
    """The destinations of all open sessions. Beyond 10,000 of them, further ones share a row for each kind."""
    rows: dict[tuple[str, bytes, DestinationKind], DestinationRow] = {}

    def row_of(virtual_host: str, destination: bytes, kind: DestinationKind) -> DestinationRow:
        key = (virtual_host, destination, kind)
        if key not in rows and len(rows) >= _MAX_DESTINATIONS:
            key = ("", OTHER, kind)
        if key not in rows:
            rows[key] = DestinationRow(key[0], shown(key[1]), KIND_NAMES[kind])
        return rows[key]

    async for client in in_turns(tuple(gateway.clients)):
        session, name = client.session, client.session.settings.name
        for counters in (session.traffic.sends, session.subscriptions.past):
            for (destination, kind), counter in counters.items():
                row_of(name, destination, kind).traffic.add(counter)
        for subscription in session.subscriptions.all:
            row = row_of(name, subscription.address, subscription.kind)
            row.traffic.add(subscription.stats)
            row.subscriptions += 1
    return list(rows.values())
