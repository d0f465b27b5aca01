"""stomp.py as users have it, with a listener that tests can wait for."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

import stomp

from tests.support.deadline import PATIENCE, happens

Address = tuple[str, int]

CLIENTS: Final[dict[str, Callable[..., Any]]] = {
    "1.0": stomp.StompConnection10,
    "1.1": stomp.StompConnection11,
    "1.2": stomp.StompConnection12,
}


@dataclass(frozen=True)
class Message:
    """A MESSAGE as stomp.py passes it on."""

    headers: dict[str, str]
    body: str


class Inbox(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py ships no types
    """Collects what a connection receives; every method here waits for an event."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()
        self.errors: queue.Queue[Message] = queue.Queue()
        self.disconnected = Event()
        self.heart_beats: queue.Queue[None] = queue.Queue()
        self.connected: dict[str, str] = {}
        self._receipts: dict[str, Event] = {}

    def on_connected(self, frame: Any) -> None:  # noqa: ANN401 - stomp.py ships no types
        """Called by stomp.py's thread."""
        self.connected = frame.headers

    def on_message(self, frame: Any) -> None:  # noqa: ANN401 - stomp.py ships no types
        """Called by stomp.py's thread."""
        self.messages.put(Message(frame.headers, frame.body))

    def on_error(self, frame: Any) -> None:  # noqa: ANN401
        """Called by stomp.py's thread."""
        self.errors.put(Message(frame.headers, frame.body))

    def on_receipt(self, frame: Any) -> None:  # noqa: ANN401
        """Called by stomp.py's thread."""
        self._receipt(frame.headers["receipt-id"]).set()

    def on_heartbeat(self) -> None:
        """Called by stomp.py's thread."""
        self.heart_beats.put(None)

    def on_disconnected(self) -> None:
        """Called by stomp.py's thread."""
        self.disconnected.set()

    def _receipt(self, receipt: str) -> Event:
        return self._receipts.setdefault(receipt, Event())

    def receipt(self, receipt: str) -> None:
        """Wait for a receipt."""
        happens(self._receipt(receipt))

    def has_receipt(self, receipt: str) -> bool:
        """Whether a receipt has come."""
        return self._receipt(receipt).is_set()

    def wait_for_heart_beats(self, count: int) -> None:
        """Wait for so many more heart-beats."""
        for _ in range(count):
            self.heart_beats.get(timeout=PATIENCE)

    def message(self) -> Message:
        """Wait for the next message."""
        return self.messages.get(timeout=PATIENCE)

    def error(self) -> Message:
        """Wait for the next ERROR."""
        return self.errors.get(timeout=PATIENCE)


class StompPy:
    """A connection of one version, with one interface for stomp.py's different methods.

    Args:
        address: of the server.
        version: of STOMP.
        **options: for stomp.py's connection.
    """

    def __init__(self, address: Address, version: str, **options: Any) -> None:  # noqa: ANN401
        self.version = version
        self.inbox = Inbox()
        self.connection = CLIENTS[version]([address], **options)
        self.connection.set_listener("inbox", self.inbox)
        self._receipts = itertools.count(1)

    def confirmed(self, method: Callable[..., Any], *arguments: Any, **headers: Any) -> None:  # noqa: ANN401
        """Call a method of stomp.py with a receipt, and wait for that."""
        receipt = f"receipt-{next(self._receipts)}"
        method(*arguments, receipt=receipt, **headers)
        self.inbox.receipt(receipt)

    def ack(self, message: Message, subscription: str, **headers: Any) -> None:  # noqa: ANN401
        """Acknowledge, with a receipt."""
        self.confirmed(self.connection.ack, *self._ack_arguments(message, subscription), **headers)

    def nack(self, message: Message, subscription: str, **headers: Any) -> None:  # noqa: ANN401
        """Refuse; only versions 1.1 and 1.2 have a method for it."""
        self.confirmed(self.connection.nack, *self._ack_arguments(message, subscription), **headers)

    def _ack_arguments(self, message: Message, subscription: str) -> tuple[str, ...]:
        if self.version == "1.2":
            return (message.headers["ack"],)
        if self.version == "1.1":
            return message.headers["message-id"], subscription
        return (message.headers["message-id"],)

    def disconnect(self) -> None:
        """Send DISCONNECT, wait for its receipt and the end of the connection."""
        self.confirmed(self.connection.disconnect)
        happens(self.inbox.disconnected)


@contextlib.contextmanager
def connected(address: Address, version: str, **options: Any) -> Iterator[StompPy]:  # noqa: ANN401
    """A connection that has logged in as guest, for the time of a ``with`` block."""
    client = StompPy(address, version, **options)
    client.connection.connect("guest", "guest", wait=True)
    try:
        yield client
    finally:
        if client.connection.is_connected():
            client.disconnect()
