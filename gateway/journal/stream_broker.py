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

from aio_pika import Connection
from aio_pika.exceptions import CONNECTION_EXCEPTIONS
from yarl import URL

from gateway import __version__
from gateway.config.addresses import BrokerUrl
from gateway.config.broker_user import User
from gateway.config.tls_settings import broker_tls_context
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
    async def connected(self, purpose: str) -> AsyncIterator[Connection]:
        """A connection to the first node that answers; it is closed at the end of the block.

        It is not one of the library's that reconnect: who uses it goes on from what is stored, after its own back-off.

        Raises:
            ShipError: no node answers, or it refuses.
        """
        reasons = []
        for url in self.urls:
            try:
                connection = await self._connect(url, purpose)
            except CONNECTION_EXCEPTIONS as error:
                reasons.append(f"{url}: {reason_of(error)}")
                continue
            async with connection:
                yield connection
            return
        raise ShipError("; ".join(reasons))

    async def _connect(self, url: BrokerUrl, purpose: str) -> Connection:
        address = url.with_login(self.user.login, self.user.passcode.get_secret_value(), self.virtual_host)
        name = f"stomp-gateway {purpose} {self.stream}"
        connection = Connection(
            URL(address, encoded=True),
            ssl_context=broker_tls_context(self.tls) if url.tls else None,
            client_properties={"product": "stomp-gateway", "version": __version__, "connection_name": name},
        )
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                await connection.connect()
        except BaseException:
            # The garbage collector would do so, in any thread.
            await connection.close()
            raise
        return connection


def reason_of(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
