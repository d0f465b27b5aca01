"""Services beside a gateway that talk to its brokers: a greeting from each, and the streams of archives.

Streams are declared while clients are served. `try_archives` is for `stomp-gateway check`: it tells whether a
declaration would succeed, and changes nothing in the broker.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import structlog
from aio_pika import Connection
from aio_pika.abc import HeadersType
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, ChannelNotFoundEntity, ChannelPreconditionFailed

from gateway.config.journal_settings import Archive
from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHost
from gateway.journal.shipper import ShipError
from gateway.journal.stream import StreamBroker, reason_of
from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.broker.broker_state import Circuit
from gateway.server.broker.dialer import Dialer
from gateway.server.fault_boundary import cancelled
from gateway.server.process.served import InUse, Service
from gateway.session.destinations import parse

if TYPE_CHECKING:
    from aio_pika.abc import AbstractQueue

    from gateway.server.process.gateway import Gateway

log = structlog.get_logger("gateway.broker")

_FIRST_RETRY, _LAST_RETRY = 5.0, 300.0
_ANSWER_WITHIN: Final = 30.0
# The broker deletes whole files of a stream, and never the last one. Its own default is 500 MB.
_MOST_FILE_BYTES: Final = 500_000_000
_FILES: Final = 10


class BrokerService(Service["Gateway"]):
    """Has work that begins with the gateway, while clients are served."""

    def __init__(self) -> None:
        self._work: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Cancel the work."""
        await cancelled(self._work)


# Greetings.


class BrokerGreetings(BrokerService):
    """Logs a greeting from each broker, once.

    A greeting needs no login. If a broker does not answer, its circuit notes it and logs the reason.
    """

    async def start(self, gateway: Gateway) -> None:
        """Begin, without waiting."""
        self._work = asyncio.create_task(_greet_all(gateway), name="greetings of brokers")


async def _greet_all(gateway: Gateway) -> None:
    dialer = gateway.pool.dialer
    # Virtual hosts that reach a broker in the same way share its circuit.
    users: dict[Circuit, list[VirtualHost]] = {}
    for virtual_host in gateway.config.resolved_virtual_hosts():
        for circuit in dialer.circuits(virtual_host.upstream):
            users.setdefault(circuit, []).append(virtual_host)
    async with asyncio.TaskGroup() as group:
        for circuit, virtual_hosts in users.items():
            group.create_task(_greet(dialer, circuit, virtual_hosts), name=f"greeting of {circuit.broker}")


async def _greet(dialer: Dialer, circuit: Circuit, virtual_hosts: list[VirtualHost]) -> None:
    try:
        product = await dialer.greeted(circuit.broker, virtual_hosts[0].upstream)
    except LinkDownError:
        return
    names = [virtual_host.name for virtual_host in virtual_hosts]
    log.info("broker answers", broker=str(circuit.broker), product=product, virtual_hosts=names)


# Archives.


class ArchiveStreams(BrokerService):
    """Declares the streams of `archives` and their bindings, with the operator's users, at the start and after reloads.

    A failure is logged, and the declaration is tried again until it succeeds.
    """

    async def start(self, gateway: Gateway) -> None:
        """Begin, without waiting."""
        await self.reload(gateway.config)

    async def reload(self, config: GatewayConfig) -> InUse:
        """Declare the streams of another configuration. Others stay in the broker."""
        await self.stop()
        if any(virtual_host.archives for virtual_host in config.resolved_virtual_hosts()):
            self._work = asyncio.create_task(_declare_all(config), name="streams of archives")
        return {}


async def _declare_all(config: GatewayConfig) -> None:
    async with asyncio.TaskGroup() as group:
        for virtual_host in config.resolved_virtual_hosts():
            for archive in virtual_host.archives:
                group.create_task(_declare_until_done(virtual_host, archive), name=f"archive {archive.stream}")


async def _declare_until_done(virtual_host: VirtualHost, archive: Archive) -> None:
    about = {"virtual_host": virtual_host.name, "stream": archive.stream}
    broker = StreamBroker.of(virtual_host, archive.user, archive.stream)
    retry = _FIRST_RETRY
    while True:
        try:
            async with broker.connected("archive") as connection, asyncio.timeout(_ANSWER_WITHIN):
                await _declare(connection, archive, virtual_host.default_topic_exchange)
        except (ShipError, *CONNECTION_EXCEPTIONS) as error:
            log.error("archive not declared", **about, reason=reason_of(error), retry=retry)
            await asyncio.sleep(retry)
            retry = min(2 * retry, _LAST_RETRY)
        else:
            log.info("archive declared", **about, destinations=list(archive.destinations))
            return


async def _declare(connection: Connection, archive: Archive, topic_exchange: bytes) -> None:
    """Declare the stream unless it exists, and bind it. An existing stream keeps its properties."""
    queue = await _stream(connection, archive.stream)
    if queue is None:
        channel = await connection.channel()
        queue = await channel.declare_queue(archive.stream, durable=True, arguments=_arguments(archive))
    for destination in archive.destinations:
        exchange, key = parse(destination.encode()).route(topic_exchange)
        await queue.bind(exchange.decode(), key.decode())


async def _stream(connection: Connection, name: str) -> AbstractQueue | None:
    """The stream of this name; None if there is no such queue. Raises the broker's error if it is no stream."""
    channel = await connection.channel()
    try:
        queue = await channel.get_queue(name)
    except ChannelNotFoundEntity:
        return None
    await channel.set_qos(1)
    # Only a stream accepts an offset.
    tag = await queue.consume(_ignore, arguments={"x-stream-offset": "next"})
    with suppress(*CONNECTION_EXCEPTIONS):
        await queue.cancel(tag)
    return queue


async def _ignore(_message: object) -> None:
    """Take messages until the consumer is cancelled. They stay in the stream."""


def _arguments(archive: Archive) -> HeadersType:
    arguments: dict[str, Any] = {"x-queue-type": "stream"}
    if archive.max_age is not None:
        arguments["x-max-age"] = f"{int(archive.max_age)}s"
    if archive.max_bytes is not None:
        arguments["x-max-length-bytes"] = archive.max_bytes
        arguments["x-stream-max-segment-size-bytes"] = min(_MOST_FILE_BYTES, max(1, archive.max_bytes // _FILES))
    return arguments


async def try_archives(virtual_hosts: Iterable[VirtualHost]) -> list[tuple[str, str]]:
    """Two lines for each archive: what was found, and what to do if it cannot be declared; empty if it can."""
    archives = [(virtual_host, archive) for virtual_host in virtual_hosts for archive in virtual_host.archives]
    return [*await asyncio.gather(*(_try_archive(*each) for each in archives))]


async def _try_archive(virtual_host: VirtualHost, archive: Archive) -> tuple[str, str]:
    user, broker = archive.user.login, StreamBroker.of(virtual_host, archive.user, archive.stream)
    about = f"archive {archive.stream} of virtual host {virtual_host.name}, as {user}"
    try:
        async with broker.connected("check") as connection, asyncio.timeout(_ANSWER_WITHIN):
            return f"{about}: yes, {await _found(connection, archive, virtual_host.default_topic_exchange)}", ""
    except (ShipError, *CONNECTION_EXCEPTIONS) as error:
        advice = "Correct user under archives if the broker refuses the login."
        if "ACCESS_REFUSED" in reason_of(error) and not isinstance(error, ShipError):  # that would be the login
            advice = (
                f"Give {user} the permissions configure, write and read on {archive.stream}, and read on the exchanges "
                f"of its destinations: rabbitmqctl set_permissions -p {broker.virtual_host} {user} CONF WRITE READ."
            )
        elif isinstance(error, ChannelNotFoundEntity):
            advice = "Declare this exchange, or correct the destinations under archives."
        elif isinstance(error, ChannelPreconditionFailed):
            advice = "A queue of this name is no stream, or the broker has none. Give another name under archives."
        return f"{about}: no, {reason_of(error)}", advice


async def _found(connection: Connection, archive: Archive, topic_exchange: bytes) -> str:
    """Whether the stream exists or can be declared. Raises the broker's error otherwise."""
    is_there = await _stream(connection, archive.stream) is not None
    if not is_there:
        channel = await connection.channel()
        # A stream cannot be exclusive. The broker refuses that (406) if the user may declare a stream.
        with suppress(ChannelPreconditionFailed):
            await channel.declare_queue(archive.stream, exclusive=True, arguments={"x-queue-type": "stream"})
    channel = await connection.channel()
    for destination in archive.destinations:
        exchange, _ = parse(destination.encode()).route(topic_exchange)
        await channel.get_exchange(exchange.decode())
        # To remove a binding that does not exist, the user needs the same permissions as to make one.
        aiormq_channel = await channel.get_underlay_channel()
        await aiormq_channel.queue_unbind(archive.stream, exchange.decode(), f"check-{secrets.token_hex(8)}")
    return "it is there" if is_there else "it can be declared"
