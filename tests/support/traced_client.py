"""A stand-in for a client's connection, as a trace sees it: a real decoder, and counters that the test's bytes move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from gateway.server.client.connection_stats import ConnectionStats
from gateway.server.client.traces import FrameWatch, WatchedDecoder, WatchedTransport
from gateway.server.stats import Stats
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder


class SilentTransport(asyncio.Transport):
    """Takes everything."""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Nothing is kept."""


class TracedClient:
    """Carries out what it reads by counting it."""

    def __init__(self, host: str = "10.1.2.3", name: str = "session-a", login: bytes | None = None) -> None:
        self.decoder = Decoder()
        self.transport: asyncio.Transport = SilentTransport()
        self.sums = Stats()
        self.facts = SimpleNamespace(identity=name.encode(), login=login, traffic=SimpleNamespace(frames_received=0))
        self.session = cast("Session", self.facts)
        listener = SimpleNamespace(address="127.0.0.1:61613")
        stats = SimpleNamespace(peer=f"{host}:4711", host=host, listener=listener, add_to=self._add_to)
        self.stats = cast("ConnectionStats", stats)
        self.is_held = False

    def _add_to(self, sums: Stats) -> None:
        sums.receipts += self.sums.receipts

    def watch(self, watch: FrameWatch | None) -> None:
        """As `ClientConnection.watch`."""
        if isinstance(self.transport, WatchedTransport):
            self.transport = self.transport.transport
        decoder, self.decoder = self.decoder, Decoder()
        self.decoder.take_over(decoder)
        if watch is not None:
            self.decoder = WatchedDecoder(decoder, watch)
            self.transport = cast("asyncio.Transport", WatchedTransport(self.transport, watch.sent))

    def receive(self, data: bytes) -> None:
        """The client sends bytes."""
        self.decoder.feed(data)
        self._run()

    def _run(self) -> None:
        while not self.is_held and self.decoder.next_frame() is not None:
            self.facts.traffic.frames_received += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Frames wait in the decoder."""
        self.is_held = True
        yield
        self.release()

    def release(self) -> None:
        """They do no longer."""
        self.is_held = False
        self._run()

    def send(self, receipts: int) -> None:
        """The gateway writes so many RECEIPTs."""
        self.sums.receipts += receipts
        self.transport.write(b"RECEIPT\nreceipt-id:r\n\n\0\n" * receipts)
