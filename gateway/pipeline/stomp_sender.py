"""Sends messages to a STOMP server, each with a receipt, and a bounded number of them unconfirmed."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gateway.client_tls import client_context
from gateway.errors import PipelineError
from gateway.stomp.frame import encode
from gateway.stomp.frame_scanner import FrameScanner, ScannedFrame, UnreadableStreamError

WINDOW: Final = 1000
_WRITE_BYTES: Final = 64 << 10
_WINDOW_BYTES: Final = 16 << 20
"""Bytes of frames without a receipt, above which the next one waits."""
_TIMEOUT: Final = 60.0
_PORT, _TLS_PORT = 61613, 61614
_READ_BYTES: Final = 64 << 10

# Columns of a message that are properties, and the headers of SEND that set them. Not user-id, which the broker
# compares with the login that sends.
_PROPERTIES: Final = {
    "content_type": b"content-type", "content_encoding": b"content-encoding", "correlation_id": b"correlation-id",
    "reply_to": b"reply-to", "expiration": b"expiration", "message_id": b"amqp-message-id", "type": b"type",
    "app_id": b"app-id", "priority": b"priority",
}  # fmt: skip
_NOT_SENT: Final = frozenset(
    b"destination receipt transaction content-length message-id subscription redelivered ack".split()
)
"""Entries of a message's headers that would mean something else in a SEND."""
_PERSISTENT: Final = 2


@dataclass(frozen=True)
class StompServer:
    """Where to send, and as whom. The passcode is not in ``repr``."""

    host: str
    port: int
    tls: bool = False
    virtual_host: str = "/"
    login: str | None = None
    passcode: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, url: str, login: str | None = None, passcode: str | None = None) -> StompServer:
        """Read ``stomp://host:port/vhost``, or ``stomps://`` with TLS. Raises PipelineError if it is something else."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("stomp", "stomps") or not parts.hostname:
            raise PipelineError("the URL of the server must be like stomp://host:61613/vhost, or stomps:// with TLS.")
        tls = parts.scheme == "stomps"
        if login is None and parts.username:
            login = unquote(parts.username)
        if passcode is None and parts.password:
            passcode = unquote(parts.password)
        port = port or (_TLS_PORT if tls else _PORT)
        return cls(parts.hostname, port, tls, unquote(parts.path[1:]) or "/", login, passcode)

    def __str__(self) -> str:
        return f"{'stomps' if self.tls else 'stomp'}://{self.host}:{self.port}"


class StompSender:
    """One session. Everything raises PipelineError if the server refuses or is lost.

    ``receipted`` is the number of messages that the server has confirmed.
    """

    def __init__(self, server: StompServer, window: int = WINDOW) -> None:
        self._server = server
        self._window = window
        self._scanner = FrameScanner(from_client=False)
        self._numbers = itertools.count()
        self._open: dict[bytes, int] = {}
        """The receipts that are to come, with the sizes of their frames."""
        self._open_bytes = 0
        self._unwritten = bytearray()
        self.receipted = 0
        try:
            plain = socket.create_connection((server.host, server.port), _TIMEOUT)
            self._socket = _with_tls(plain, server.host) if server.tls else plain
        except OSError as error:
            raise PipelineError(f"{server} does not answer: {error.strerror or error}") from error
        self._log_in()

    def _log_in(self) -> None:
        server = self._server
        headers = [(b"accept-version", b"1.1,1.2"), (b"host", server.virtual_host.encode()), (b"heart-beat", b"0,0")]
        who = (b"login", server.login), (b"passcode", server.passcode)
        headers += [(name, value.encode()) for name, value in who if value is not None]
        try:
            self._write(encode(b"CONNECT", headers))
            self._flush()
            while (found := next(iter(self._read()), None)) is None:
                pass
            if found.command != b"CONNECTED":
                raise self._refusal(found)
        except PipelineError:
            self._socket.close()
            raise

    def send(self, destination: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a message; wait first if too many have no receipt yet."""
        receipt = b"%d" % next(self._numbers)
        frame = encode(b"SEND", [(b"destination", destination.encode()), (b"receipt", receipt), *headers], body)
        while self._open and (len(self._open) >= self._window or self._open_bytes + len(frame) > _WINDOW_BYTES):
            self._take_receipts()
        self._open[receipt] = len(frame)
        self._open_bytes += len(frame)
        self._write(frame)

    def finish(self) -> None:
        """Wait for all receipts."""
        while self._open:
            self._take_receipts()

    def close(self) -> None:
        """End the session."""
        with suppress(OSError, PipelineError):
            self._write(encode(b"DISCONNECT", []))
            self._flush()
        self._socket.close()

    def _take_receipts(self) -> None:
        self._flush()
        for found in self._read():
            if found.command != b"RECEIPT":
                raise self._refusal(found)
            size = self._open.pop(found.headers.get(b"receipt-id", b""), None)
            if size is not None:
                self._open_bytes -= size
                self.receipted += 1

    def _refusal(self, found: ScannedFrame) -> PipelineError:
        text = found.headers.get(b"message", found.command).decode("utf-8", "replace")
        return PipelineError(f"{self._server} refuses: {text}")

    def _write(self, frame: bytes) -> None:
        self._unwritten += frame
        if len(self._unwritten) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        data, self._unwritten = self._unwritten, bytearray()
        if not data:
            return  # to send nothing would fail, too, if the server has closed, though its answers may still be here
        try:
            self._socket.sendall(data)
        except OSError as error:
            # The server may have said why before it closed.
            with suppress(OSError):
                for found in self._frames(self._socket.recv(_READ_BYTES)):
                    if found.command == b"ERROR":
                        raise self._refusal(found) from error
            raise self._lost(error) from error

    def _read(self) -> Iterator[ScannedFrame]:
        """The frames that come next."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost("the server has closed the connection")
        return self._frames(data)

    def _frames(self, data: bytes) -> Iterator[ScannedFrame]:
        try:
            yield from self._scanner.scan(data)
        except UnreadableStreamError as error:
            raise self._lost(error) from error

    def _lost(self, why: object) -> PipelineError:
        left = f"{len(self._open):,} messages were sent and not receipted"
        return PipelineError(f"{self._server}: the connection was lost ({why}); {left}.")


@contextmanager
def sending(server: StompServer, window: int = WINDOW) -> Iterator[StompSender]:
    """A session; its receipts are awaited at the end, unless something was raised."""
    sender = StompSender(server, window)
    try:
        yield sender
        sender.finish()
    finally:
        sender.close()


def send_headers(message: Mapping[str, Any], identifier: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The headers of a SEND for a row with columns of the table ``messages``, and an identifier of ours."""
    entries = dict(message.get("headers") or ()).items()
    found = {name.encode(): str(value).encode() for name, value in entries if value is not None}
    found = {name: value for name, value in found.items() if name not in _NOT_SENT}
    for column, header in _PROPERTIES.items():
        if (value := message.get(column)) is not None:
            found[header] = str(value).encode()
    if message.get("timestamp") is not None:
        found[b"timestamp"] = b"%d" % message["timestamp"].timestamp()
    if message.get("delivery_mode") == _PERSISTENT:
        found[b"persistent"] = b"true"
    return [*(found | dict([identifier])).items()]


def _with_tls(plain: socket.socket, host: str) -> socket.socket:
    try:
        return client_context(None, verify=True).wrap_socket(plain, server_hostname=host)
    except OSError:
        plain.close()
        raise
