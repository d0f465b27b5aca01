"""`stomp-gateway parity`: compare RabbitMQ's STOMP plugin and the gateway, transcript by transcript."""

import asyncio
import logging
import secrets
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from aio_pika.exceptions import AMQPError

from gateway.errors import GatewayError, UsageError
from gateway.parity.amqp_broker import AmqpBroker, Broker, BrokerLostError, BrokerRefusalError, poll
from gateway.parity.broker_fixture import CleanupLog
from gateway.parity.comparison import Comparison, Outcome
from gateway.parity.play_state import Identity
from gateway.parity.rendering import readable, render
from gateway.parity.report import ParityReport
from gateway.parity.steps import SIDES, Release, Side
from gateway.parity.stomp_peer import Address, Closed, ServerFrame, ServerFrameError, SilenceError, SocketPeer
from gateway.parity.transcript import SETUPS, Setup, Transcript, load_departures, load_transcripts

_CONNECT_WITHIN = 10.0  # seconds
_MAX_JOBS = 64
_MAX_PORT = 0xFFFF
_NO_BROKER = (
    "the broker cannot be reached over AMQP (--amqp): whatever needs that is skipped, and whether "
    "both servers have the same broker is not known"
)
_WRONG_URL = "--amqp must be amqp://HOST:PORT, or amqp://USER:PASSWORD@HOST:PORT/VHOST with %2F for a slash in VHOST"
_UNQUOTED = (
    "--amqp has an @, a slash, ? or # where none belongs: in USER, PASSWORD and VHOST write %40 for @, %2F for a "
    "slash, %3F for ?, %23 for #"
)


def list_transcripts(only: str | None) -> None:
    """Print the name, setup and title of the transcripts that `only` selects. Raises UsageError if there are none."""
    for each in _selected(only):
        print(f"{each.name:<36}  {each.setup:<15}  {'departure' if each.departures else '':<9}  {each.title}")


async def compare(options: Namespace, passcode: str) -> bool:
    """Play the transcripts on both servers and print the report; return True if something was played and all is equal.

    Raises UsageError, PreflightError, and BrokenPipeError if standard output was closed. The broker is cleaned up in
    any case, also when this is cancelled.
    """
    checked = _checked(options, passcode)
    transcripts = _selected(options.only)
    # The report says when the broker closes a connection. The libraries' own logs would interrupt it.
    for library in ("aio_pika", "aiormq"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    cleanup_log = CleanupLog()
    try:
        return await _compare(checked, transcripts, cleanup_log, options)
    finally:
        if cleanup_log.leftovers:
            print(f"stomp-gateway: left in the broker: {', '.join(sorted(cleanup_log.leftovers))}", file=sys.stderr)


def _selected(only: str | None) -> list[Transcript]:
    selected = load_transcripts(only)
    if not selected:
        raise UsageError(f"--only {only}: no conversation has such a name; --list shows them all")
    return selected


async def _compare(
    checked: "_CheckedOptions", transcripts: Sequence[Transcript], cleanup_log: CleanupLog, options: Namespace
) -> bool:
    names = {side: await _server_name(side, checked.servers[side], checked.identity) for side in SIDES}
    print(f"plugin   {options.plugin}  {names['plugin']}\ngateway  {options.gateway}  {names['gateway']}")
    report = ParityReport(
        sys.stdout,
        sys.stderr if sys.stderr.isatty() else None,
        width=shutil.get_terminal_size().columns,
        departures=load_departures(),
        total=len(transcripts),
        verbose=options.verbose,
    )
    async with AsyncExitStack() as stack:
        broker = await _connect_to_broker(checked, stack)
        if broker:
            await _check_same_broker(checked.servers, broker, checked.amqp_address, checked.identity, cleanup_log)
        # A plugin may hide its release, which is that of its broker.
        release = Release.from_server_header(names["plugin"]) or (broker.release if broker else None)
        comparison = Comparison(
            checked.servers, broker, release, checked.identity, checked.setups, checked.jobs, cleanup_log
        )
        started = time.monotonic()
        await comparison.run(transcripts, report.add_verdict, report.add_finished)
        report.print_summary(time.monotonic() - started, () if broker else (_NO_BROKER,))
    return bool(report.played) and not report.outcomes[Outcome.DIFFERENT]


async def _connect_to_broker(checked: "_CheckedOptions", stack: AsyncExitStack) -> AmqpBroker | None:
    """Connect to the broker until the stack is closed; print why and return None if that fails."""
    try:
        async with asyncio.timeout(_CONNECT_WITHIN):
            broker = await stack.enter_async_context(AmqpBroker.connected(checked.amqp_url))
    except (AMQPError, OSError, TimeoutError, ValueError) as error:
        reason = (str(error) or type(error).__name__).replace(checked.amqp_url, checked.amqp_address).rstrip(".")
        print(
            f"broker   {checked.amqp_address}  cannot be reached over AMQP: {reason}. Name it with --amqp URL.\n",
            flush=True,
        )
        return None
    release = f"  RabbitMQ {broker.release}" if broker.release else ""
    print(f"broker   {checked.amqp_address}{release}\n", flush=True)
    return broker


# The command line.


@dataclass(frozen=True, slots=True, repr=False)
class _CheckedOptions:
    servers: Mapping[Side, Address]
    amqp_url: str
    """With credentials and virtual host."""
    amqp_address: str
    """The broker's host and port, to print instead of a URL with a password."""
    identity: Identity
    setups: tuple[Setup, ...]
    jobs: int


def _checked(options: Namespace, passcode: str) -> _CheckedOptions:
    texts: dict[Side, str | None] = {"plugin": options.plugin, "gateway": options.gateway}
    if missing := [f"--{side}" for side, text in texts.items() if text is None]:
        are = "is" if len(missing) == 1 else "are"
        raise UsageError(f"{' and '.join(missing)} {are} missing: both servers are needed, as HOST:PORT")
    servers = {side: _address(f"--{side}", text or "") for side, text in texts.items()}
    amqp_url = _amqp_url(options, servers["plugin"], passcode)
    amqp_login, virtual_host, amqp_address = _parse_amqp_url(amqp_url)
    if virtual_host != options.host:
        raise UsageError(
            f"--amqp names the virtual host {virtual_host!r}, and --host is {options.host!r}: it must be the same"
        )
    if not 1 <= options.jobs <= _MAX_JOBS:
        raise UsageError(f"--jobs must be a number from 1 to {_MAX_JOBS}, not {options.jobs}")
    identity = Identity(options.login, passcode, options.host, amqp_login)
    return _CheckedOptions(servers, amqp_url, amqp_address, identity, _setups(options.setup), options.jobs)


def _setups(names: Sequence[str] | None) -> tuple[Setup, ...]:
    unknown = [name for name in names or () if name not in SETUPS]
    if unknown:
        raise UsageError(f"--setup {unknown[0]}: there is no such setup; there are {', '.join(SETUPS)}")
    return tuple(setup for setup in SETUPS if setup in (names or ("plain",)))


def _address(option: str, text: str) -> Address:
    if "@" in text or "/" in text:  # perhaps a URL with a passcode, so it is not repeated
        raise UsageError(f"{option} must be HOST:PORT alone, without a user, a scheme or a path; the user is --login")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise UsageError(f"{option} must be HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _amqp_url(options: Namespace, plugin: Address, passcode: str) -> str:
    """The broker's URL; where it has no user or no virtual host, those of the clients."""
    host = f"[{plugin[0]}]" if ":" in plugin[0] else plugin[0]
    try:
        parts = urlsplit(options.amqp or f"amqp://{host}:5672")
    except ValueError:
        raise UsageError(_WRONG_URL) from None
    user = f"{quote(options.login, safe='')}:{quote(passcode, safe='')}"
    # aio-pika reads the path `/` as the virtual host `/`, and removes the first slash of any other path.
    path = "/" if options.host == "/" else f"/{quote(options.host, safe='')}"
    netloc = parts.netloc if "@" in parts.netloc else f"{user}@{parts.netloc}"
    return urlunsplit(parts._replace(netloc=netloc, path=parts.path or path))


def _parse_amqp_url(url: str) -> tuple[str, str, str]:
    """Return the login, virtual host and HOST:PORT of a URL. Errors do not repeat it, as it has a password."""
    try:
        parts = urlsplit(url)
        if parts.netloc.count("@") > 1 or any("@" in part for part in (parts.path, parts.query, parts.fragment)):
            raise UsageError(_UNQUOTED)
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)  # ValueError if it is not a number
    except ValueError:
        raise UsageError(_WRONG_URL) from None
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise UsageError(_WRONG_URL)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return unquote(parts.username or "guest"), unquote(parts.path.removeprefix("/")) or "/", f"{host}:{port}"


# Before the first transcript: both servers answer, accept the user, and have the same broker.


# In the server header of a gateway, and in no plugin's.
_GATEWAY = "stomp-gateway/"
_TIMEOUT = 10.0  # seconds
_ATTEMPTS = 80
_CONNECT = "CONNECT\naccept-version:1.2\nhost:{host}\nlogin:{login}\npasscode:{passcode}\n\n{nul}"
_SEND = "SEND\ndestination:/amq/queue/{queue}\nreceipt:sent\n\n{side}{nul}"


class PreflightError(GatewayError):
    """The servers cannot be compared; the text says what to do."""


async def _server_name(side: Side, address: Address, identity: Identity) -> str:
    """Log in to a server and return its `server` header, empty if it sends none.

    Raises PreflightError if it cannot be reached, does not speak STOMP, refuses the login, or is the other server.
    """
    async with aclosing(_PreflightClient(side, address, identity)) as client:
        return await client.log_in()


async def _check_same_broker(
    servers: Mapping[Side, Address], broker: Broker, broker_address: str, identity: Identity, log: CleanupLog
) -> None:
    """Check that a message sent through each server arrives in the broker; `broker_address` is for error texts.

    Raises PreflightError if a message does not arrive, or if the user lacks permissions.
    """
    queue = f"t-{secrets.token_hex(6)}"
    try:
        await broker.declare_queue(queue, durable=True, auto_delete=False, arguments={})
        for side, address in servers.items():
            async with aclosing(_PreflightClient(side, address, identity)) as client:
                await client.log_in()
                await client.send(queue)
            message = await poll(lambda: broker.take(queue), lambda message: message is not None, _ATTEMPTS)
            if message is None or message.body != side.encode():
                raise PreflightError(
                    f"what is sent through {client.where} does not arrive in the virtual host {identity.host!r} of the "
                    f"broker at {broker_address}. --plugin, --gateway and --amqp must be of the same broker."
                )
    except BrokerRefusalError as refusal:
        reason = str(refusal).rstrip(".")
        raise PreflightError(
            f"the broker at {broker_address} refuses {identity.amqp_login!r} a queue: {reason}.\n"
            f"{_needed_permissions(identity)}"
        ) from None
    except BrokerLostError as lost:
        raise PreflightError(f"the broker at {broker_address}: {str(lost).rstrip('.')}.") from None
    finally:
        try:
            await broker.delete_queue(queue)
        except BrokerRefusalError:
            pass  # a user who may not delete it could not declare it
        except BrokerLostError:
            log.leftovers.add(f"queue {queue}")


class _PreflightClient:
    def __init__(self, side: Side, address: Address, identity: Identity) -> None:
        self.where = f"the {side} at {address[0]}:{address[1]}"
        self._side = side
        self._identity = identity
        self._peer = SocketPeer(address, _TIMEOUT)

    async def log_in(self) -> str:
        frame = await self._request(_CONNECT, {}, "CONNECT")
        if frame.command != b"CONNECTED":
            login, host = self._identity.login, self._identity.host
            raise PreflightError(
                f"{self.where} refuses the login {login!r} to the virtual host {host!r}: {_one_line(frame)}\n"
                "Give another user with --login and the passcode in STOMP_PASSCODE or --passcode-file, "
                "another virtual host with --host."
            )
        server = next((readable(line[7:]) for line in frame.headers if line.startswith(b"server:")), "")
        if self._side == "plugin" and _GATEWAY in server:
            raise PreflightError(f"{self.where} calls itself {server}. Are --plugin and --gateway the wrong way round?")
        return server

    async def send(self, queue: str) -> None:
        """Send a message to a queue that exists; its body is the name of the side."""
        frame = await self._request(_SEND, {"queue": queue.encode(), "side": self._side.encode()}, "SEND")
        if frame.command != b"RECEIPT":
            raise PreflightError(
                f"{self.where} refuses {self._identity.login!r} a SEND: {_one_line(frame)}\n"
                f"{_needed_permissions(self._identity)}"
            )

    async def aclose(self) -> None:
        await self._peer.close()

    async def _request(self, text: str, values: Mapping[str, bytes], command: str) -> ServerFrame:
        try:
            async with asyncio.timeout(_TIMEOUT * 2):
                await self._peer.send("C", render(text, {**self._identity.header_scope, **values}))
                received = await self._peer.receive("C")
        except OSError as error:
            reason = (error.strerror or str(error) or "no answer").rstrip(".")  # TimeoutError is an OSError, too
            raise PreflightError(
                f"{self.where} cannot be reached: {reason}. Is it running, and is this its STOMP port?"
            ) from None
        except (SilenceError, ServerFrameError) as error:
            reason = str(error).rstrip(".")
            raise PreflightError(
                f"{self.where} does not answer as a STOMP server does: {reason}. Is this its port?"
            ) from None
        if not isinstance(received, ServerFrame):
            did = "closes the connection" if isinstance(received, Closed) else "says nothing but heart-beats"
            raise PreflightError(
                f"{self.where} {did} instead of answering {command}. Is this its port for STOMP without TLS?"
            )
        return received


def _one_line(frame: ServerFrame) -> str:
    headers = [readable(line) for line in frame.headers if line.startswith(b"message:")]
    return ", ".join([readable(frame.command), *headers, *readable(frame.body).split("\n")]).rstrip(", ")


def _needed_permissions(identity: Identity) -> str:
    return f"The user needs the right to configure, write and read everything in the virtual host {identity.host!r}."
