"""The traffic and the state of all sessions, added up by virtual host for metrics and the API.

There may be thousands of sessions, so a few are counted at a time and the event loop serves messages in between. The
totals are still right: those of ended sessions and the list of open ones are taken at the same moment, and a session
that ends before it is counted keeps its counters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from gateway.session.context import State

if TYPE_CHECKING:
    from gateway.server.client.connection import ClientConnection
    from gateway.server.process.gateway import Gateway
    from gateway.server.stats import Stats

# Sessions that are counted before the event loop has a turn.
_AT_ONCE: Final = 100


async def in_turns(clients: tuple[ClientConnection, ...]) -> AsyncIterator[ClientConnection]:
    """Iterate over clients, and let the event loop do something else after every hundred of them."""
    for number, client in enumerate(clients):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        yield client


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
        if stats.is_started:
            stats.add_to(self.totals[label])
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

    def holds_by_reason(self, label: str | None = None) -> dict[str, int]:
        """Sessions that are held now, of one virtual host or of all."""
        counts: Counter[str] = Counter()
        for (host, reason), count in self.holds.items():
            if count and label in (None, host):
                counts[reason] += count
        return dict(counts)
