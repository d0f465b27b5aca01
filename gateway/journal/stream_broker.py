"""The broker with a stream of segments: where it is, a connection to it, and what a message of the stream is.

A segment is compressed (gzip) and cut into messages of at most `PART_BYTES`. All messages of one publication carry the
segment's name, the number that the publication was given by chance, how many they are, and size and digest of the
segment. So a reader puts together only what belongs together, and knows when it has all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from aiormq.abc import AbstractConnection
from aiormq.connection import Connection
from aiormq.exceptions import AMQPError
from yarl import URL

from gateway import __version__
from gateway.config.broker_tls import broker_tls_context
from gateway.config.broker_user import User
from gateway.config.scalars import BrokerUrl
from gateway.config.virtual_host import UpstreamTls
from gateway.journal.shipper import ShipError

PART_BYTES: Final = 1 << 20
"""The largest body of a message."""
SEGMENT_TYPE: Final = "stomp-gateway.segment"
MARK_TYPE: Final = "stomp-gateway.mark"
"""A reader's own message: when it comes back, the reader has all that came before."""

_CONNECT_WITHIN: Final = 10.0


@dataclass(frozen=True)
class StreamBroker:
    """The nodes of a broker, who logs in, and the stream in one of its virtual hosts."""

    urls: tuple[BrokerUrl, ...]
    user: User
    virtual_host: str
    stream: str
    tls: UpstreamTls = field(default_factory=UpstreamTls)

    @asynccontextmanager
    async def connected(self, purpose: str) -> AsyncIterator[AbstractConnection]:
        """A connection to the first node that answers; it is closed at the end of the block.

        Raises:
            ShipError: no node answers, or it refuses.
        """
        reasons = []
        for url in self.urls:
            try:
                connection = await self._connect(url, purpose)
            except (OSError, AMQPError, RuntimeError, StopAsyncIteration) as error:
                reasons.append(f"{url}: {reason_of(error)}")
                continue
            try:
                yield connection
            finally:
                await connection.close()
            return
        raise ShipError("; ".join(reasons))

    async def _connect(self, url: BrokerUrl, purpose: str) -> AbstractConnection:
        context = broker_tls_context(self.tls) if url.tls else None
        # It holds the passcode, so it never leaves this method.
        address = URL.build(
            scheme=url.scheme, user=quote(self.user.login, safe=""),
            password=quote(self.user.passcode.get_secret_value(), safe=""), host=url.host, port=url.port,
            path="/" + quote(self.virtual_host, safe=""), encoded=True,
        )  # fmt: skip
        name = f"stomp-gateway {purpose} {self.stream}"
        properties = {"product": "stomp-gateway", "version": __version__, "connection_name": name}
        connection = Connection(address, context=context, client_properties={**properties})
        async with asyncio.timeout(_CONNECT_WITHIN):
            await connection.connect()
            await connection.ready()
        return connection


def reason_of(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
