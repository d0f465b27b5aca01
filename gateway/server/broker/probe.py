"""Trying a broker, for `stomp-gateway check`: how far does a connection get, and why no further?

The handshake is walked step by step with pamqp's frames on a plain stream, and not with aio-pika, because the answer
wanted here is the step that failed: aio-pika shows one exception for the whole, needs credentials to begin, and writes
to the log on its own. (AMQP 0-9-1, 2.2.4: protocol header, start, start-ok, tune, tune-ok, open, open-ok, close.)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pamqp import base, commands, common, exceptions, frame, header, heartbeat

from gateway.config import PASS_THROUGH, BrokerUrl, UpstreamTls, User, VirtualHost
from gateway.server.tls_contexts import broker_tls_context

_FRAME_HEADER = 7  # type, channel and size of an AMQP frame (4.2.3)
_MAX_HANDSHAKE_FRAME = 1 << 20
_ACCESS_REFUSED = 403
_END = 1.0  # seconds that a cut connection may take to be gone
_CLIENT_PROPERTIES: common.FieldTable = {
    "product": "stomp-gateway",
    "information": "stomp-gateway check",
    # With it the broker says that it refuses a login, instead of closing without a word.
    "capabilities": {"authentication_failure_close": True},
}

MethodT = TypeVar("MethodT", bound=base.Frame)


@dataclass(frozen=True)
class Target:
    """One thing to try. Equal targets are tried once."""

    url: BrokerUrl
    tls: UpstreamTls
    connect_timeout: float
    """Seconds for the whole attempt."""
    user: User | None
    """Whom to log in as; None tries the handshake up to the broker's greeting."""
    amqp_vhost: str | None
    """The virtual host to open; None stops after the login."""


@dataclass
class Report:
    """What an attempt found."""

    target: Target
    names: list[str] = field(default_factory=list)
    """The gateway's virtual hosts that need this target."""
    steps: list[tuple[str, str]] = field(default_factory=list)
    """What was tried and how it went, in order."""
    usable: bool = False
    """Whether everything that was tried went well."""


class _StepFailed(Exception):  # noqa: N818 - it ends an attempt as planned, and never leaves this module
    """The attempt ends with this sentence for the current step."""


async def probe(virtual_hosts: Iterable[VirtualHost]) -> list[Report]:
    """Try every upstream URL of every virtual host, the same one once.

    Args:
        virtual_hosts: resolved ones; the entry for unknown hosts is tried up to the login.

    Returns:
        A report for each distinct target, in the order of the configuration.
    """
    reports: dict[Target, Report] = {}
    for virtual_host in virtual_hosts:
        for target in _targets(virtual_host):
            reports.setdefault(target, Report(target)).names.append(virtual_host.name)
    await asyncio.gather(*(_Attempt(report).run() for report in reports.values()))
    return list(reports.values())


def _targets(virtual_host: VirtualHost) -> Iterable[Target]:
    upstream = virtual_host.upstream
    amqp_vhost = None if virtual_host.amqp_vhost == PASS_THROUGH else virtual_host.amqp_vhost
    if virtual_host.default_user is None:
        amqp_vhost = None
    for url in dict.fromkeys(upstream.urls):
        yield Target(url, upstream.tls, upstream.connect_timeout, virtual_host.default_user, amqp_vhost)


class _Attempt:
    """One connection, from the first packet to the virtual host."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._target = report.target
        self._step = "reachable"
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Fill in the report; never raises for what a broker does or fails to do."""
        try:
            async with asyncio.timeout(self._target.connect_timeout):
                await self._walk()
            self._report.usable = True
        except _StepFailed as failure:
            self._note(f"no: {failure}")
        except TimeoutError:
            hint = ". Does this port speak AMQP?" if self._step == "broker" else ""
            self._note(f"no: no answer within {self._target.connect_timeout:g} s{hint}")
        except (asyncio.IncompleteReadError, ConnectionError):
            self._note("no: the broker closed the connection")
        except exceptions.PAMQPException:
            self._note("no: what answers there does not speak AMQP 0-9-1")
        finally:
            if self._writer is not None:
                await _ended(self._writer)

    def _note(self, finding: str) -> None:
        self._report.steps.append((self._step, finding))

    async def _walk(self) -> None:
        await self._connect()
        await self._greet()
        if self._target.user is None:
            self._step = "login"
            self._note("not tried: there is no default_user, so clients bring their own")
            return
        tune = await self._log_in(self._target.user)
        if self._target.amqp_vhost is None:
            self._step = "virtual host"
            self._note("not tried: clients name it")
            return
        await self._open(tune, self._target.amqp_vhost)

    async def _connect(self) -> None:
        url = self._target.url
        try:
            self._reader, self._writer = await asyncio.open_connection(url.host, url.port)
        except OSError as error:
            raise _StepFailed(_os_reason(error)) from None
        self._note("yes")
        self._step = "TLS"
        if url.tls:
            await self._secure(self._writer)
        else:
            self._note("not used")

    async def _secure(self, writer: asyncio.StreamWriter) -> None:
        try:
            context = broker_tls_context(self._target.tls)
        except OSError as error:
            # Changed since the configuration was read, which tries them out.
            raise _StepFailed(f"the files under tls cannot be used, {_ssl_or_os_reason(error)}") from None
        try:
            await writer.start_tls(context, server_hostname=self._target.url.host)
        except ssl.SSLCertVerificationError as error:
            message = f"the broker's certificate is not accepted, {error.verify_message}. See ca_file under tls"
            raise _StepFailed(message) from None
        except ssl.SSLError as error:
            raise _StepFailed(f"{_ssl_reason(error)}. Does this port speak TLS?") from None
        except ConnectionError:
            raise _StepFailed("the broker closed the connection. Does this port speak TLS?") from None
        protocol = writer.get_extra_info("ssl_object").version()
        checked = "" if self._target.tls.verify else ", certificate not checked"
        self._note(f"yes: {protocol}{checked}")

    async def _greet(self) -> None:
        self._step = "broker"
        self._send_bytes(header.ProtocolHeader().marshal())
        try:
            start = await self._expect(commands.Connection.Start)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _StepFailed("it closed the connection at once. Does this port want TLS (amqps)?") from None
        properties = start.server_properties or {}
        self._note(" ".join(_property(properties, name) for name in ("product", "version")).strip() or "unnamed")

    async def _log_in(self, user: User) -> commands.Connection.Tune:
        self._step = "login"
        response = f"\0{user.login}\0{user.passcode.get_secret_value()}"
        self._send(commands.Connection.StartOk(_CLIENT_PROPERTIES, "PLAIN", response, "en_US"))
        try:
            tune = await self._expect(commands.Connection.Tune)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _StepFailed(f"{user.login} is refused") from None
        self._note(f"yes: {user.login} is accepted")
        return tune

    async def _open(self, tune: commands.Connection.Tune, amqp_vhost: str) -> None:
        self._step = "virtual host"
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        self._send(commands.Connection.Open(virtual_host=amqp_vhost))
        await self._expect(commands.Connection.OpenOk)
        self._note(f"yes: {amqp_vhost} can be used")
        self._send(commands.Connection.Close(200, "checked", 0, 0))
        await self._expect(commands.Connection.CloseOk)

    def _send(self, method: base.Frame) -> None:
        self._send_bytes(frame.marshal(method, 0))

    def _send_bytes(self, octets: bytes) -> None:
        if self._writer is None:
            raise ConnectionError("not connected")
        self._writer.write(octets)

    async def _expect(self, wanted: type[MethodT]) -> MethodT:
        """The next frame, which must be a method of this type; a close becomes the step's failure."""
        while True:
            received = await self._read_frame()
            if isinstance(received, wanted):
                return received
            if isinstance(received, commands.Connection.Close):
                self._send(commands.Connection.CloseOk())
                raise _StepFailed(self._refusal(received))
            if not isinstance(received, heartbeat.Heartbeat):
                raise exceptions.PAMQPException

    async def _read_frame(self) -> frame.FrameTypes:
        head = await self._reader.readexactly(_FRAME_HEADER)
        size = int.from_bytes(head[3:7], "big")
        if head[:1] not in b"\1\x08" or size > _MAX_HANDSHAKE_FRAME:
            raise exceptions.PAMQPException
        return frame.unmarshal(head + await self._reader.readexactly(size + 1))[2]

    def _refusal(self, close: commands.Connection.Close) -> str:
        if self._step == "login" and close.reply_code == _ACCESS_REFUSED and self._target.user:
            return f"{self._target.user.login} is refused. The broker's log says why"
        return f"{close.reply_text}"


async def _ended(writer: asyncio.StreamWriter) -> None:
    """Cut a connection, and hear what it died of: an error that nobody asks for is written to the terminal."""
    writer.transport.abort()
    with contextlib.suppress(OSError):  # a timeout, too
        async with asyncio.timeout(_END):
            await writer.wait_closed()


def _property(properties: common.FieldTable, name: str) -> str:
    value = properties.get(name, "")
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "".join(character for character in text if character.isprintable())


def _ssl_reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _ssl_or_os_reason(error: OSError) -> str:
    return _ssl_reason(error) if isinstance(error, ssl.SSLError) else _os_reason(error)


def _os_reason(error: OSError) -> str:
    # asyncio's own text repeats the address; a resolver's error number is not the system's.
    known = error.errno in errno.errorcode and not isinstance(error, socket.gaierror)
    text = os.strerror(error.errno) if known and error.errno else error.strerror or str(error)
    return text[:1].lower() + text[1:]
