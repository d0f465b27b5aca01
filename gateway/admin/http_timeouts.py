"""The doorman of the admin listener: bounds how long a connection may take for anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

# Seconds: until the first request is there; for an answer to be put together; for it to be fetched and another request
# to be there.
_TO_ASK: Final = 10.0
_TO_ANSWER: Final = 60.0
_TO_FETCH: Final = 30.0


class HttpTimeouts:
    """Shows connections out when they take too long.

    Args:
        make_protocol: makes the HTTP library's end of a connection.
    """

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._make_protocol = make_protocol
        self._guests: dict[asyncio.BaseTransport, TimedConnection] = {}

    def connection(self, leave: Callable[[], None]) -> asyncio.Protocol:
        """The protocol of a new connection.

        Args:
            leave: called when it has ended.
        """
        return TimedConnection(self, self._make_protocol(), leave)

    def arrived(self, guest: TimedConnection, transport: asyncio.Transport) -> None:
        """A connection is open, and its TLS handshake done."""
        self._guests[transport] = guest
        guest.allow(_TO_ASK)

    def gone(self, transport: asyncio.BaseTransport) -> None:
        """A connection has ended."""
        self._guests.pop(transport, None)

    def asked(self, transport: asyncio.BaseTransport | None) -> None:
        """A request is there as a whole."""
        self._allow(transport, _TO_ANSWER)

    def answered(self, transport: asyncio.BaseTransport | None) -> None:
        """The answer is on its way."""
        self._allow(transport, _TO_FETCH)

    def _allow(self, transport: asyncio.BaseTransport | None, seconds: float) -> None:
        guest = None if transport is None else self._guests.get(transport)
        if guest is not None:
            guest.allow(seconds)


class TimedConnection(asyncio.Protocol):
    """One connection: everything goes on to the HTTP library.

    Args:
        doorman: who watches the time.
        inner: the HTTP library's end.
        leave: called when it has ended.
    """

    def __init__(self, http_timeouts: HttpTimeouts, inner: asyncio.Protocol, leave: Callable[[], None]) -> None:
        self._doorman = http_timeouts
        self._inner = inner
        self._leave = leave
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def allow(self, seconds: float) -> None:
        """Whatever comes next must come within so many seconds."""
        self._stop_timer()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._doorman.arrived(self, self._transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """No further request will come."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The answer is not fetched as fast as it is written."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It is again."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop_timer()
        self._leave()
        if self._transport is not None:
            self._doorman.gone(self._transport)
            self._inner.connection_lost(exc)
