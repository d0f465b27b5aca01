"""Tests brokers for `stomp-gateway check`: which steps of a connection succeed, and why the next one fails.

aio-pika connects in one call, which succeeds or raises one error. So a probe takes each step itself, with pamqp's
frames on a plain stream (AMQP 0-9-1, 2.2.4):

* TCP, then TLS. The library opens an encrypted socket in one step.
* Protocol header and start: the greeting, and without a user the last step. The library forgets it if the broker then
  refuses the login.
* start-ok and tune: the login, and without a virtual host the last step. The library always opens a virtual host, and
  its error does not say which of the two was refused.
* tune-ok, open, open-ok and close.
* A message that reaches no queue, because RabbitMQ reports an alarm only to a connection that publishes.

The probe also reads frames itself, with a bound: from a server of another protocol, the library might wait for 4 GiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from pamqp import base, commands, common, exceptions, frame, header, heartbeat

from gateway.amqp.codec import FRAME_HEADER, HEARTBEAT, METHOD
from gateway.config.addresses import BrokerUrl
from gateway.config.broker_user import User
from gateway.config.model import PASS_THROUGH
from gateway.config.tls_settings import broker_tls_context
from gateway.config.virtual_host import UpstreamTls, VirtualHost
from gateway.server.broker.broker_errors import ACCESS_REFUSED, os_reason
from gateway.server.broker.host_resolver import HostResolver
from gateway.texts import printable

_MAX_HANDSHAKE_FRAME: Final = 1 << 20
_ABORT_TIMEOUT: Final = 1.0
# In seconds.
_HEARTBEAT: Final = 5
# The most characters of a broker's name.
_LONGEST_NAME: Final = 100
FIRST_STEP: Final = "reachable"
_CLIENT_PROPERTIES: Final[common.FieldTable] = {
    "product": "stomp-gateway",
    "information": "stomp-gateway check",
    # Makes the broker answer a refused login with connection.close before it closes the socket.
    "capabilities": {"authentication_failure_close": True, "connection.blocked": True},
}

MethodT = TypeVar("MethodT", bound=base.Frame)


@dataclass(frozen=True)
class ProbeTarget:
    """A broker to test, with TLS settings, user and virtual host. Equal targets are tested once.

    ``connect_timeout``: in seconds, for all steps together. ``user``: without one, the test ends at the broker's
    greeting. ``amqp_vhost``: without one, it ends after the login.
    """

    url: BrokerUrl
    tls: UpstreamTls
    connect_timeout: float
    user: User | None
    amqp_vhost: str | None


@dataclass
class ProbeReport:
    """The result for one target: each step with its finding, in order.

    ``virtual_hosts``: the gateway's virtual hosts that use the target. ``alarm``: the broker's text, or empty.
    """

    target: ProbeTarget
    virtual_hosts: list[str] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)
    usable: bool = False
    alarm: str = ""


class _StepFailed(Exception):  # noqa: N818 - it ends an attempt as planned, and never leaves this module
    """The current step fails; the text is its finding."""


async def probe(virtual_hosts: Iterable[VirtualHost], login: User | None = None) -> list[ProbeReport]:
    """Test every upstream URL of every resolved virtual host with every user of it, and with ``login``.

    The reports are in the order of the configuration.
    """
    reports: dict[ProbeTarget, ProbeReport] = {}
    resolver = HostResolver()
    for virtual_host in virtual_hosts:
        for target in targets_of(virtual_host, login):
            reports.setdefault(target, ProbeReport(target)).virtual_hosts.append(virtual_host.name)
    await asyncio.gather(*(_Attempt(report, resolver).run() for report in reports.values()))
    return list(reports.values())


class Greeting(NamedTuple):
    """The name of a broker that answers, or the reason why it does not answer."""

    product: str = ""
    reason: str = ""


async def greets(url: BrokerUrl, tls: UpstreamTls, seconds: float, resolver: HostResolver) -> Greeting:
    """Ask a broker for its greeting, without a login, within ``seconds``."""
    report = ProbeReport(ProbeTarget(url, tls, seconds, None, None))
    await _Attempt(report, resolver).run()
    if report.usable:
        return Greeting(product=dict(report.steps)["broker"][:_LONGEST_NAME])
    return Greeting(reason=report.steps[-1][1].removeprefix("no: "))


def targets_of(virtual_host: VirtualHost, login: User | None = None) -> Iterator[ProbeTarget]:
    """The brokers to test for a virtual host, each with every user, and with ``login``."""
    upstream, of_certificates = virtual_host.upstream, virtual_host.certificate_users
    named = (virtual_host.default_user, *of_certificates.users.values(), of_certificates.everyone, login)
    users: list[User | None] = [user for user in dict.fromkeys(named) if user is not None]
    for url in dict.fromkeys(upstream.urls):
        for user in users or [None]:
            is_named_by_clients = user is None or virtual_host.amqp_vhost == PASS_THROUGH
            amqp_vhost = None if is_named_by_clients else virtual_host.amqp_vhost
            yield ProbeTarget(url, upstream.tls, upstream.connect_timeout, user, amqp_vhost)


class _Attempt:
    """One connection, from TCP to the virtual host."""

    def __init__(self, report: ProbeReport, resolver: HostResolver) -> None:
        self._report = report
        self._resolver = resolver
        self._target = report.target
        self._step = FIRST_STEP
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Fill in the report. Errors become findings."""
        try:
            async with asyncio.timeout(self._target.connect_timeout):
                await self._take_steps()
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
                await _abort(self._writer)

    def _note(self, finding: str) -> None:
        self._report.steps.append((self._step, finding))

    async def _take_steps(self) -> None:
        await self._connect()
        await self._greet()
        self._step = "login"
        if self._target.user is None:
            self._note("not tried: there is no default_user, so clients bring their own")
            return
        tune = await self._log_in(self._target.user)
        self._step = "virtual host"
        if self._target.amqp_vhost is None:
            self._note("not tried: clients name it")
            return
        await self._open(tune, self._target.amqp_vhost)

    async def _connect(self) -> None:
        url = self._target.url
        try:
            plain = await self._resolver.connected(url.host, url.port)
            self._reader, self._writer = await asyncio.open_connection(sock=plain)
        except OSError as error:
            raise _StepFailed(os_reason(error)) from None
        self._note("yes")
        self._step = "TLS"
        if url.tls:
            await self._start_tls(self._writer)
        else:
            self._note("not used")

    async def _start_tls(self, writer: asyncio.StreamWriter) -> None:
        try:
            context = broker_tls_context(self._target.tls)
        except OSError as error:
            # The files have changed since the configuration was read.
            reason = _ssl_reason(error) if isinstance(error, ssl.SSLError) else os_reason(error)
            raise _StepFailed(f"the files under tls cannot be used, {reason}") from None
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
        self._write(header.ProtocolHeader().marshal())
        try:
            start = await self._expect(commands.Connection.Start)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _StepFailed("it closed the connection at once. Does this port want TLS (amqps)?") from None
        properties = start.server_properties or {}
        self._note(" ".join(_property(properties, name) for name in ("product", "version")).strip() or "unnamed")

    async def _log_in(self, user: User) -> commands.Connection.Tune:
        response = f"\0{user.login}\0{user.passcode.get_secret_value()}"
        self._send(commands.Connection.StartOk(_CLIENT_PROPERTIES, "PLAIN", response, "en_US"))
        try:
            tune = await self._expect(commands.Connection.Tune)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _StepFailed(f"{user.login} is refused") from None
        self._note(f"yes: {user.login} is accepted")
        return tune

    async def _open(self, tune: commands.Connection.Tune, amqp_vhost: str) -> None:
        # A broker with an alarm does not read this connection, and so notices its end only by missing heart-beats.
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, _HEARTBEAT))
        self._send(commands.Connection.Open(virtual_host=amqp_vhost))
        await self._expect(commands.Connection.OpenOk)
        self._note(f"yes: {amqp_vhost} can be used")
        self._step = "alarm"
        self._report.alarm = await self._alarm()
        if self._report.alarm:
            self._note(f"yes: {self._report.alarm}")
            return
        self._note("none")
        self._send(commands.Connection.Close(200, "checked", 0, 0))
        await self._expect(commands.Connection.CloseOk)

    async def _alarm(self) -> str:
        """The broker's text if it has an alarm; otherwise empty."""
        self._send(commands.Channel.Open(), 1)
        await self._expect(commands.Channel.OpenOk)
        # To a queue that does not exist. The broker also reports an alarm to a user who may not publish.
        self._send(commands.Basic.Publish(exchange="", routing_key=f"stomp-gateway-check-{secrets.token_hex(8)}"), 1)
        self._write(frame.marshal(header.ContentHeader(0, 0, commands.Basic.Properties()), 1))
        self._send(commands.Channel.Close(200, "checked", 0, 0), 1)
        told: base.Frame = commands.Channel.Close()
        while isinstance(told, commands.Channel.Close):
            told = await self._expect(commands.Channel.CloseOk, commands.Channel.Close, commands.Connection.Blocked)
        return told.reason if isinstance(told, commands.Connection.Blocked) else ""

    def _send(self, method: base.Frame, channel: int = 0) -> None:
        self._write(frame.marshal(method, channel))

    def _write(self, data: bytes) -> None:
        if self._writer is None:
            raise ConnectionError("not connected")
        self._writer.write(data)

    async def _expect(self, *wanted: type[MethodT]) -> MethodT:
        """Read the next frame, which must be one of these methods. connection.close fails the step."""
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
        start = await self._reader.readexactly(FRAME_HEADER.size)
        kind, _, size = FRAME_HEADER.unpack(start)
        if kind not in (METHOD, HEARTBEAT) or size > _MAX_HANDSHAKE_FRAME:
            raise exceptions.PAMQPException
        return frame.unmarshal(start + await self._reader.readexactly(size + 1))[2]

    def _refusal(self, close: commands.Connection.Close) -> str:
        if self._step == "login" and close.reply_code == ACCESS_REFUSED and self._target.user:
            return f"{self._target.user.login} is refused. The broker's log says why"
        return f"{close.reply_text}"


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Abort a connection, and retrieve its error, because asyncio would print it otherwise."""
    writer.transport.abort()
    with contextlib.suppress(OSError):  # TimeoutError included
        async with asyncio.timeout(_ABORT_TIMEOUT):
            await writer.wait_closed()


def _property(properties: common.FieldTable, name: str) -> str:
    value = properties.get(name, "")
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else str(value))


def _ssl_reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
