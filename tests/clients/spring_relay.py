"""Spring's broker relay as a server sees it: what `StompBrokerRelayMessageHandler` says, and when it gives up.

It has one connection for the application, the system session, which only sends, and one for each browser, all from
one address and with one login. An end of the system session makes the broker *unavailable*: until the relay has
connected again, 5 seconds later, a browser that sends something loses its session. An ERROR for a browser ends that
browser's session, since Spring closes its WebSocket then; an ERROR for the system session is logged only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.deadline import PATIENCE
from tests.support.gateway import Address
from tests.support.stomp_client import ConnectionOverError, Frame, StompClient

_HEART_BEAT: Final = 10.0
_RECONNECT_AFTER: Final = 5.0
_CONNECTED_WITHIN: Final = 60.0
_CONNECT: Final = {"accept_version": "1.1,1.2", "login": "guest", "passcode": "guest", "heart_beat": "10000,10000"}


class UnavailableError(Exception):
    """`MessageDeliveryException`: the application sends while there is no system session."""


@dataclass(eq=False)
class Browser:
    """A browser's session: what came for it, and why it was lost, if it was."""

    name: str
    connection: StompClient
    messages: asyncio.Queue[Frame] = field(default_factory=asyncio.Queue)
    seen: set[bytes] = field(default_factory=set)
    lost: str | None = None

    def subscribe(self, identifier: str, destination: str, **headers: str) -> None:
        """The page subscribes; without a receipt, as stompjs does it."""
        self.connection.write("SUBSCRIBE", id=identifier, destination=destination, **headers)

    async def message(self) -> Frame:
        """The next MESSAGE, or RECEIPT."""
        async with asyncio.timeout(PATIENCE):
            return self._see(await self.messages.get())

    def has_seen(self, body: bytes) -> bool:
        """Whether a message with this body has come, or a RECEIPT with this id."""
        while not self.messages.empty():
            self._see(self.messages.get_nowait())
        return body in self.seen

    def _see(self, frame: Frame) -> Frame:
        self.seen.add(frame.headers.get("receipt-id", "").encode() or frame.body)
        return frame

    async def until(self, *bodies: bytes) -> None:
        """Receive messages until all these have come, or RECEIPTs with these ids, in whatever order."""
        while not self.seen.issuperset(bodies):
            await self.message()


class SpringRelay:
    """The relay of one application.

    Args:
        address: of the STOMP server.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = contextlib.AsyncExitStack()
        self._system: StompClient | None = None
        self._became_available = asyncio.Event()
        self.browsers: list[Browser] = []
        # `BrokerAvailabilityEvent`s with `brokerAvailable=false`.
        self.unavailable = 0
        # ERRORs for the system session, which Spring logs.
        self.errors: list[Frame] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, address: Address) -> AsyncIterator[SpringRelay]:
        """A relay with its system session, stopped at the end."""
        relay = cls(address)
        relay._spawn(relay._keep_system_session())
        relay._spawn(relay._keep_alive())
        try:
            await asyncio.wait_for(relay._became_available.wait(), PATIENCE)
            yield relay
        finally:
            for task in relay._tasks:
                task.cancel()
            await asyncio.gather(*relay._tasks, return_exceptions=True)
            await relay._connections.aclose()

    @property
    def is_available(self) -> bool:
        """Whether there is a system session."""
        return self._became_available.is_set()

    @property
    def lost(self) -> list[str]:
        """Why browsers have lost their sessions."""
        return [browser.lost for browser in self.browsers if browser.lost is not None]

    # The application.

    async def convert_and_send(self, destination: str, body: bytes, **headers: str) -> None:
        """`SimpMessagingTemplate.convertAndSend`, which waits until the operating system has taken the bytes.

        Raises:
            UnavailableError: there is no system session.
        """
        if self._system is None:
            raise UnavailableError(destination)
        self._system.write("SEND", body, destination=destination, **headers)
        await self._system.writer.drain()

    # Browsers.

    async def browser(self, name: str) -> Browser:
        """A browser connects, and the relay connects for it.

        Raises:
            UnavailableError: there is no system session, or the server refuses.
        """
        if not self.is_available:
            raise UnavailableError(name)
        connection = await self._connections.enter_async_context(StompClient.dialled(self._address))
        connection.write("CONNECT", **_CONNECT)
        answer = await connection.receive(_CONNECTED_WITHIN)
        if answer.command != "CONNECTED":
            raise UnavailableError(answer["message"])
        browser = Browser(name, connection)
        self.browsers.append(browser)
        self._spawn(self._read(browser))
        return browser

    def send(self, browser: Browser, destination: str, body: bytes = b"x", **headers: str) -> None:
        """A page sends: without the broker its session ends."""
        if not self.is_available:
            self._lose(browser, "Broker not available.")
        if browser.lost is None:
            browser.connection.write("SEND", body, destination=destination, **headers)

    async def _read(self, browser: Browser) -> None:
        try:
            while browser.lost is None:
                frame = await browser.connection.receive(float("inf"))
                if frame.command in ("MESSAGE", "RECEIPT"):
                    browser.messages.put_nowait(frame)
                elif frame.command == "ERROR":
                    self._lose(browser, f"ERROR {frame['message']}")
        except ConnectionOverError:
            self._lose(browser, "the connection is closed")

    def _lose(self, browser: Browser, reason: str) -> None:
        browser.lost = browser.lost or reason
        browser.connection.writer.transport.abort()

    # The system session.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    async def _keep_system_session(self) -> None:
        while True:
            with contextlib.suppress(ConnectionOverError, OSError):
                async with StompClient.dialled(self._address) as connection:
                    connection.write("CONNECT", **_CONNECT)
                    if (await connection.receive(_CONNECTED_WITHIN)).command == "CONNECTED":
                        self._system = connection
                        self._became_available.set()
                    while True:
                        self.errors.append(await connection.receive(float("inf")))
            if self._system is not None:
                self._system = None
                self.unavailable += 1
                self._became_available.clear()
            await asyncio.sleep(_RECONNECT_AFTER)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_HEART_BEAT)
            beating = [each.connection for each in self.browsers if each.lost is None]
            for connection in (*beating, *([] if self._system is None else [self._system])):
                connection.writer.write(b"\n")
