"""A fault of the gateway ends the session that it happens in. Sessions that share its link notice nothing."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from structlog.typing import EventDict

from deploy.local.broker import Broker
from gateway.errors import CodecError
from gateway.parity.amqp_broker import AmqpBroker
from gateway.server.client.connection import ClientConnection
from gateway.server.client.connection_stats import ConnectionStats
from gateway.server.process.gateway import Gateway
from gateway.session import ops
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from tests.support.chaos import ChaosProxy
from tests.support.deadline import until, within
from tests.support.gateway import gateway_here, parsed, upstream
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

ERRORS = [CodecError("fault"), IndexError("fault"), struct.error("fault"), RuntimeError("fault")]


def name_of(error: Exception) -> str:
    return type(error).__name__


class Sabotage:
    """Makes methods raise for the objects of one session."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.victims: list[object] = []
        self._patch = patch

    def breaks(self, owner: type[Any], name: str, error: Exception, when: type[Any] = object) -> None:
        """Let a method raise when its last argument is of a type."""
        works, victims = getattr(owner, name), self.victims

        def method(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - stands for any method
            if any(self is victim for victim in victims) and isinstance((self, *arguments)[-1], when):
                raise error
            return works(self, *arguments, **named)

        self._patch.setattr(owner, name, method)


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Sabotage:
    return Sabotage(monkeypatch)


class Pair:
    """Two sessions of one login on the same links, each with a subscription to a queue of its own."""

    def __init__(self, gateway: Gateway, victim: StompClient, neighbour: StompClient, queue: str) -> None:
        self.gateway = gateway
        self.victim = victim
        self.neighbour = neighbour
        self.queues = {victim: f"/queue/{queue}-victim", neighbour: f"/queue/{queue}"}
        self.links = set(gateway.pool.links)

    async def begin(self, ack: str) -> list[object]:
        """Subscribe, and have everything opened that messages need; the objects of the victim's session."""
        more = {"prefetch-count": "10", "auto-delete": "true"}
        for client, destination in self.queues.items():
            await client.ask("SUBSCRIBE", id="s", destination=destination, ack=ack, **more)
            await self.sends(client)
        self.links = set(self.gateway.pool.links)
        assert len(self.links) == 2
        return [
            each for client in self.gateway.clients for each in parts(client) if "-victim" in destination_of(client)
        ]

    async def sends(self, client: StompClient) -> None:
        """A client sends itself a message, and gets it and the RECEIPT."""
        client.write("SEND", b"x", destination=self.queues[client], receipt="r")
        assert {(await client.receive()).command for _ in range(2)} == {"RECEIPT", "MESSAGE"}

    async def ends_alone(self, log: list[EventDict]) -> None:
        """The victim gets its ERROR behind whole frames; the neighbour goes on, on the same links."""
        frames = [await self.victim.receive()]
        while frames[-1].command != "ERROR":
            frames.append(await self.victim.receive())
        assert frames[-1]["message"] == "Processing error"
        await self.victim.closed()
        await self.sends(self.neighbour)
        assert self.gateway.pool.links == self.links
        assert [line["exc_info"].args for line in log if line["event"] == "internal error"] == [("fault",)]


def destination_of(client: ClientConnection) -> str:
    return b"".join(subscription.destination for subscription in client.session.subscriptions.all).decode()


def parts(client: ClientConnection) -> list[object]:
    return [client, client.session, client.stats, client.stats.recorder, *client.session.subscriptions.all]


@asynccontextmanager
async def pair_of(url: str, queue: str, sabotage: Sabotage, ack: str = "client", **more: Any) -> AsyncIterator[Pair]:  # noqa: ANN401
    async with gateway_here(parsed(url, **more)) as gateway, within():
        address = gateway.addresses[0]
        async with StompClient.logged_in(address) as victim, StompClient.logged_in(address) as neighbour:
            pair = Pair(gateway, victim, neighbour, queue)
            sabotage.victims += await pair.begin(ack)
            yield pair


@pytest.mark.parametrize("error", ERRORS, ids=name_of)
@pytest.mark.parametrize(
    ("owner", "name"),
    [(Subscription, "deliver"), (Session, "confirm"), (ConnectionStats, "batch_done")],
)
async def test_data_from_the_broker(
    broker: Broker, queue: str, sabotage: Sabotage, owner: type[Any], name: str, error: Exception
) -> None:
    sabotage.breaks(owner, name, error)
    async with pair_of(broker.amqp_url, queue, sabotage) as pair:
        with structlog.testing.capture_logs() as log:
            # Both sessions' data may come in the same reads.
            for client, destination in pair.queues.items():
                client.write("SEND", b"x", destination=destination, receipt="r")
            assert {(await pair.neighbour.receive()).command for _ in range(2)} == {"RECEIPT", "MESSAGE"}
            await pair.ends_alone(log)


async def test_a_returned_message(broker: Broker, queue: str, sabotage: Sabotage) -> None:
    sabotage.breaks(Session, "message_returned", IndexError("fault"))
    async with pair_of(broker.amqp_url, queue, sabotage) as pair:
        with structlog.testing.capture_logs() as log:
            pair.victim.write("SEND", destination="/exchange/amq.direct/nobody", mandatory="true", receipt="r")
            await pair.ends_alone(log)


@pytest.mark.parametrize(("kind", "frame"), [(ops.ConsumerCancelled, "SUBSCRIBE"), (ops.ChannelClosed, "SEND")])
async def test_what_the_broker_does_to_a_channel(
    broker: Broker, amqp: AmqpBroker, queue: str, sabotage: Sabotage, kind: type[Any], frame: str
) -> None:
    sabotage.breaks(Session, "handle", IndexError("fault"), when=kind)
    async with pair_of(broker.amqp_url, queue, sabotage) as pair:
        with structlog.testing.capture_logs() as log:
            if frame == "SEND":
                pair.victim.write("SEND", destination="/exchange/there-is-none/a")
            else:
                await amqp.delete_queue(f"{queue}-victim")
            await pair.ends_alone(log)


async def test_the_settling_of_automatic_acknowledgements(broker: Broker, queue: str, sabotage: Sabotage) -> None:
    sabotage.breaks(ClientConnection, "settle", IndexError("fault"))
    async with pair_of(broker.amqp_url, queue, sabotage, ack="auto") as pair:
        with structlog.testing.capture_logs() as log:
            for client, destination in pair.queues.items():
                client.write("SEND", b"x", destination=destination)
            await pair.neighbour.expect("MESSAGE")
            await pair.ends_alone(log)


async def test_a_lost_link_is_told_to_every_session(
    broker: Broker, proxy: ChaosProxy, queue: str, sabotage: Sabotage
) -> None:
    sabotage.breaks(Session, "handle", IndexError("fault"), when=ops.LinkLost)
    async with pair_of(broker.amqp_url, queue, sabotage, upstream=upstream(proxy.address, ride_through=0)) as pair:
        proxy.reset()
        await pair.victim.expect("ERROR", message="Processing error")
        await pair.neighbour.expect("ERROR", message="connection_forced")


async def test_a_session_that_cannot_even_end(broker: Broker, queue: str, sabotage: Sabotage) -> None:
    """It is cut without an ERROR, and leaves nothing behind."""
    sabotage.breaks(Subscription, "deliver", IndexError("fault"))
    sabotage.breaks(Session, "close", IndexError("fault"))
    sabotage.breaks(ConnectionStats, "count_end", IndexError("fault"))
    async with pair_of(broker.amqp_url, queue, sabotage) as pair:
        pair.victim.write("SEND", b"x", destination=pair.queues[pair.victim])
        await pair.victim.closed()
        await pair.sends(pair.neighbour)

        async def left() -> tuple[int, int, int]:
            gateway = pair.gateway
            return len(gateway.clients), gateway.closing, sum(link.channels for link in pair.links)

        await until(left, lambda found: found == (1, 0, 2))
        await pair.sends(pair.neighbour)
