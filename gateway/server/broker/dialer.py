"""Opens links: to the first broker of a virtual host that answers.

The brokers are dialled in order, each a moment after the one before, or at once if that one failed ("happy eyeballs",
RFC 8305). The first that completes the login wins. A circuit for each broker keeps the results, and brokers that did
not answer go to the end of the order (docs/high-availability.md).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from gateway.config.addresses import BrokerUrl
from gateway.config.virtual_host import Upstream, UpstreamTls, VirtualHost
from gateway.server.broker.broker_errors import ACCESS_REFUSED, CONNECTION_FORCED, LinkDownError, UpstreamError
from gateway.server.broker.broker_state import Circuit
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.connector import Credentials, connect_link
from gateway.server.broker.host_resolver import HostResolver
from gateway.server.broker.link import Link
from gateway.server.broker.probe import greets
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from gateway.server.tls_contexts import TlsContexts

log = structlog.get_logger("gateway.broker")

# After this many seconds without an answer, the next broker is dialled, too; after _ALL_DIALLED, all have been dialled.
_MOMENT: Final = 0.25
_ALL_DIALLED: Final = 1.0


class Dialer:
    """Dials brokers for all virtual hosts. ``clock`` is monotonic, in seconds."""

    def __init__(
        self, clock: Callable[[], float], contexts: TlsContexts, log_limits: LogLimits, paced: PacedWork
    ) -> None:
        self.resolver = HostResolver()
        self._clock = clock
        self._contexts = contexts
        self._log_limits = log_limits
        self._paced = paced
        # Virtual hosts with the same URL and TLS settings share a circuit.
        self._circuits: dict[tuple[BrokerUrl, UpstreamTls], Circuit] = {}
        # The dials that did not win, and the tasks that close their links.
        self._losers: set[asyncio.Task[Link]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def circuits(self, upstream: Upstream) -> list[Circuit]:
        """The circuits of a virtual host's brokers, in the order of the configuration."""
        return [
            self._circuits.setdefault((broker, upstream.tls), Circuit(broker))
            for broker in dict.fromkeys(upstream.urls)
        ]

    def unanswered(self, upstream: Upstream) -> LinkDownError:
        """The error if no broker answered in time, with what is known of each broker."""
        known = [f"{circuit.broker}: {circuit.reason}" for circuit in self.circuits(upstream) if circuit.is_open]
        detail = "; ".join(known) or "no broker answered in time"
        return LinkDownError(CONNECTION_FORCED, "no broker answers", detail)

    def broker_stops(self, broker: BrokerUrl) -> None:
        """Note that a broker said that it is stopping."""
        for circuit in self._circuits.values():
            if circuit.broker == broker:
                circuit.changed_at = self._clock()

    def link_cut(self, broker: BrokerUrl, *, is_last: bool) -> None:
        """See `Circuit.link_cut`."""
        for circuit in self._circuits.values():
            if circuit.broker == broker:
                circuit.link_cut(self._clock(), is_last=is_last)

    def note_change(self, upstream: Upstream) -> None:
        """Note that one of a virtual host's brokers was lost, as another broker shows."""
        for circuit in self.circuits(upstream):
            circuit.changed_at = self._clock()

    def changed_at(self, upstream: Upstream) -> float:
        """When one of these brokers was last lost or answered again. Now, if one is dialled for the first time."""
        circuits = self.circuits(upstream)
        if any(circuit.is_unknown for circuit in circuits):
            return self._clock()
        return max(circuit.changed_at for circuit in circuits)

    def keep(self, upstreams: Iterable[Upstream]) -> None:
        """Forget all brokers except those of these upstreams."""
        wanted = {(broker, upstream.tls) for upstream in upstreams for broker in upstream.urls}
        self._circuits = {key: circuit for key, circuit in self._circuits.items() if key in wanted}

    async def greeted(self, broker: BrokerUrl, upstream: Upstream) -> str:
        """Try a broker without a login, and note in its circuit whether it answers. Returns its product name.

        Raises:
            LinkDownError: it does not answer.
        """
        circuit = next(circuit for circuit in self.circuits(upstream) if circuit.broker == broker)
        is_trial = circuit.begin(self._clock())
        product, reason = await greets(broker, upstream.tls, upstream.connect_timeout, self.resolver)
        if reason:
            circuit.failed(reason, self._clock(), is_trial=is_trial)
            raise LinkDownError(CONNECTION_FORCED, "the broker does not answer", f"{broker}: {reason}")
        circuit.answered(self._clock())
        return product

    async def open_link(
        self,
        virtual_host: VirtualHost,
        credentials: Credentials,
        client_properties: ClientProperties,
        on_read: Callable[[], None],
        *,
        one_by_one: bool = False,
    ) -> Link:
        """Open a link to the first broker of a virtual host that answers.

        If a broker refuses the login (403), this is the answer of all. After any other refusal the other brokers are
        asked, too, because a virtual host may be down, or a limit reached, on one node only.

        ``on_read``: called before anything from the broker is handled. ``one_by_one``: dial the next broker only after
        the one before it has failed, because nobody waits.

        Raises:
            UpstreamError: a broker refused, and no other accepted.
            LinkDownError: no broker answered.
        """
        waiting = self._in_order(virtual_host.upstream)
        moment = virtual_host.upstream.connect_timeout if one_by_one else min(_MOMENT, _ALL_DIALLED / len(waiting))
        running: dict[asyncio.Task[Link], Circuit] = {}
        refusal: UpstreamError | None = None
        failures: list[str] = []
        try:
            while waiting or running:
                if waiting:
                    circuit = waiting.popleft()
                    dial = self._dial(circuit, virtual_host, credentials, client_properties, on_read)
                    running[asyncio.create_task(dial, name=f"dial {circuit.broker}")] = circuit
                done, _ = await asyncio.wait(
                    running, timeout=moment if waiting else None, return_when="FIRST_COMPLETED"
                )
                if not done:
                    circuit.is_late = True
                for task in [task for task in running if task in done]:
                    broker = running.pop(task).broker
                    try:
                        return task.result()
                    except LinkDownError as down:
                        failures.append(f"{broker}: {down.detail}")
                    except UpstreamError as refused:
                        if refused.code == ACCESS_REFUSED:
                            raise
                        refusal = refusal or refused
                        waiting = deque(each for each in waiting if not each.is_open)
        finally:
            for task in running:
                self._losers.add(task)
                task.add_done_callback(self._lost)
        if refusal is not None:
            raise refusal
        raise LinkDownError(CONNECTION_FORCED, "no broker answers", "; ".join(failures))

    def _in_order(self, upstream: Upstream) -> deque[Circuit]:
        circuits, now = self.circuits(upstream), self._clock()
        if upstream.order == "shuffle":
            random.shuffle(circuits)
        return deque(sorted(circuits, key=lambda circuit: circuit.rank(now)))

    async def _dial(
        self,
        circuit: Circuit,
        virtual_host: VirtualHost,
        credentials: Credentials,
        client_properties: ClientProperties,
        on_read: Callable[[], None],
    ) -> Link:
        """Open a link to one broker, and note in its circuit whether it answers."""
        is_trial = circuit.begin(self._clock())
        link = Link(client_properties, circuit.broker, on_read, self._log_limits, self._paced)
        try:
            await connect_link(link, virtual_host, credentials, self.resolver, self._contexts)
        except LinkDownError as down:
            circuit.failed(down.detail, self._clock(), is_trial=is_trial)
            raise
        except UpstreamError:
            circuit.answered(self._clock())
            raise
        circuit.answered(self._clock())
        return link

    def _lost(self, task: asyncio.Task[Link]) -> None:
        """Close the link of a dial that did not win, in order, so that the broker logs no error."""
        self._losers.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, UpstreamError):
                log.error("background task failed", task=task.get_name(), exc_info=error)
            return
        closing = asyncio.create_task(task.result().close(), name="close a second link")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Cancel the dials that are still under way."""
        for task in self._losers:
            task.cancel()
        while self._losers or self._closing:
            await asyncio.wait([*self._losers, *self._closing])
