"""The census: everything that clients have and did, added up by virtual host for whoever asks.

There may be thousands of sessions, and messages wait meanwhile. So they are counted a few at a time, with a turn for
everybody else in between. That the picture is of no single moment does no harm: the totals of the past and the list of
sessions are taken at once, and a session that ends before its turn still has its counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from gateway.session.transitions import State

if TYPE_CHECKING:
    from gateway.server.client.connection import ClientConnection
    from gateway.server.process.gateway import Gateway
    from gateway.server.stats import Totals

# Sessions that are counted before others have a turn.
_AT_ONCE: Final = 100


class StatsSnapshot:
    """What was counted. Everything is by label of virtual host, and by one more thing where there are two keys.

    Args:
        gateway: whose clients are counted.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.totals: dict[str, Totals] = gateway.stats.past()
        self.states = Counter({state.value: 0 for state in State})
        self.sessions = Counter(dict.fromkeys(gateway.stats.hosts, 0))
        self.unconfirmed, self.unacknowledged = self.sessions.copy(), self.sessions.copy()
        self.subscriptions: Counter[tuple[str, str]] = Counter()
        # A hold that has been there before is told of when it is not there, so that its end shows.
        self.holds = Counter(
            {(label, reason): 0 for label, host in gateway.stats.hosts.items() for reason in host.holds}
        )
        self._clients = tuple(gateway.clients)
        self.states[State.CLOSED.value] += gateway.closing

    async def take(self) -> StatsSnapshot:
        """Count."""
        for number, client in enumerate(self._clients):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            self._add(client)
        self._clients = ()
        return self

    def _add(self, client: ClientConnection) -> None:
        stats, session = client.stats, client.session
        label = stats.label
        if stats.is_started:
            self.totals[label].add(stats)
        if session.state is State.CLOSED:
            self.states[State.CLOSED.value] += 1
            return
        self.states[session.state.value] += 1
        self.sessions[label] += 1
        self.unconfirmed[label] += len(session.confirms)
        for subscription in session.subscriptions.all:
            self.subscriptions[label, subscription.mode.value.decode()] += 1
            self.unacknowledged[label] += subscription.ledger.outstanding
        for hold in session.holds:
            self.holds[label, hold.value] += 1

    def holds_by_reason(self, label: str | None = None) -> dict[str, int]:
        """Sessions that are held now, of one virtual host or of all."""
        counts: Counter[str] = Counter()
        for (host, reason), count in self.holds.items():
            if count and label in (None, host):
                counts[reason] += count
        return dict(counts)
