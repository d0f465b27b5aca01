"""A link's channels, on a real broker."""

import asyncio
from urllib.parse import unquote, urlsplit

import pytest

from deploy.local.broker import Broker
from gateway.amqp.splitter import Sink
from gateway.config.model import Logging
from gateway.config.virtual_host import VirtualHost
from gateway.parity.amqp_broker import AmqpBroker, BrokerMessage
from gateway.pieces import Body
from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import Link
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from gateway.server.tls_contexts import TlsContexts
from gateway.session.queues import QueueSpec
from tests.support.chaos import Direction, chaos
from tests.support.deadline import PATIENCE
from tests.support.gateway import parsed

pytestmark = pytest.mark.system


def _virtual_host(broker_url: str) -> VirtualHost:
    found = parsed(broker_url).virtual_host("/")
    assert found is not None
    return found


async def _open(broker_url: str) -> Link:
    parts = urlsplit(broker_url)
    credentials = Credentials(unquote(parts.username or "guest"), unquote(parts.password or "guest"))
    clock = asyncio.get_running_loop().time
    return await Dialer(clock, TlsContexts(), LogLimits(Logging(), clock), PacedWork()).open_link(
        _virtual_host(broker_url), credentials, ClientProperties("test", "/", credentials.login), lambda: None
    )


async def _channel(link: Link) -> LinkChannel:
    channel = LinkChannel.begun(link)
    await channel.ask()
    return channel


class _Listener:
    """The part of a session that a link needs."""

    def __init__(self) -> None:
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def deliver(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        self.received.set_result(bytes(body))

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Nothing is published here."""

    def flush_batch(self) -> None:
        """Nothing is to be written."""


async def test_a_session_whose_channel_the_broker_closed_does_not_discard_deliveries_of_the_next_one(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    """The broker closes a channel, and its number is reused before its session has closed it."""
    link = await _open(broker_url)
    try:
        first = await _channel(link)
        with pytest.raises(UpstreamError, match="NOT_FOUND"):
            await first.bind(queue, "amq.topic", "nobody declared the queue")
        second = await _channel(link)
        assert second.number == first.number
        listener = _Listener()
        second.set_sink(Sink(listener.deliver, listener.confirm, listener))
        first.discard(None)
        first.write(b"and writes something that must be discarded")
        await second.declare(QueueSpec(queue, auto_delete=True))
        await second.bind(queue, "amq.topic", queue)
        second.limit(1)
        await second.consume(queue, {})
        await amqp.publish("amq.topic", queue, BrokerMessage(body=b"hello"))
        assert await asyncio.wait_for(listener.received, PATIENCE) == b"hello"
        await first.close()
        await second.close()
    finally:
        await link.close()


async def test_a_link_to_a_broker_that_reads_nothing_closes(broker: Broker) -> None:
    async with chaos((broker.host, broker.amqp_port)) as proxy:
        host, port = proxy.address
        link = await _open(f"amqp://{host}:{port}")
        proxy.stall(Direction.UP)
        link.write(bytes(32 << 20))
        closing = asyncio.ensure_future(link.close())
        done, _ = await asyncio.wait({closing}, timeout=PATIENCE)
        proxy.reset()
        await closing
    assert done


@pytest.mark.parametrize("rounds", range(16))
def test_a_link_that_closes_ends_whenever_all_tasks_are_cancelled(broker_url: str, rounds: int) -> None:
    """The process ends, so many rounds of the event loop after the link began to close."""

    async def scene() -> set[asyncio.Task[object]]:
        link = await _open(broker_url)
        closing = asyncio.create_task(link.close())
        for _ in range(rounds):
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task(), closing}
        for task in (closing, *tasks):
            task.cancel()
        _, unfinished = await asyncio.wait((closing, *tasks), timeout=PATIENCE)
        while not unfinished and (left := asyncio.all_tasks() - {asyncio.current_task()}):
            await asyncio.wait(left)
        return unfinished

    runner = asyncio.Runner()
    # If it fails the runner is not closed, because that waits for the same tasks.
    assert not runner.run(scene())
    runner.close()
