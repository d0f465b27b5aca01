"""The first questions to the servers: are they there, do they let the user in, and is their broker the same?"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from gateway.errors import GatewayError
from gateway.parity.broker import Broker, BrokerLostError, BrokerRefusalError
from gateway.parity.course import SERVER_NAMES
from gateway.parity.identity import Identity
from gateway.parity.script import Side
from gateway.parity.text import readable, render
from gateway.parity.wire import Address, Closed, ServerFrame, SilenceError, SocketPeer, WireError

_PATIENCE = 10.0  # seconds
_ATTEMPTS = 80
_PAUSE = 0.025  # seconds
_CONNECT = "CONNECT\naccept-version:1.2\nhost:{host}\nlogin:{login}\npasscode:{passcode}\n\n{nul}"
_SEND = "SEND\ndestination:/amq/queue/{queue}\nreceipt:sent\n\n{side}{nul}"


class GreetingError(GatewayError):
    """Servers that cannot be asked anything; the text says what to do."""


async def greet(side: Side, address: Address, identity: Identity) -> str:
    """Log in to a server, and return what it calls itself; the empty text where it does not say.

    Args:
        side: which of the two it should be.
        address: host and port.
        identity: who logs in.

    Raises:
        GreetingError: it cannot be reached, does not speak STOMP, refuses the login, or is the other one.
    """
    async with _logged_in(side, address, identity) as guest:
        return guest.server


async def meet(
    servers: Mapping[Side, Address], broker: Broker, place: str, identity: Identity, leftovers: set[str]
) -> None:
    """Make sure that a message sent through either server arrives in the broker that is looked at.

    Args:
        servers: where they listen.
        broker: which both should be in front of.
        place: the broker's host and port.
        identity: who sends.
        leftovers: gets what could not be removed from the broker, in words.

    Raises:
        GreetingError: it does not arrive, or the user lacks the rights that conversations need.
    """
    queue = f"t-{secrets.token_hex(6)}"
    try:
        await broker.declare_queue(queue, durable=True, auto_delete=False, arguments={})
        for side, address in servers.items():
            async with _logged_in(side, address, identity) as guest:
                await guest.send(queue)
            if not await _arrived(broker, queue, side):
                raise GreetingError(
                    f"what is sent through {guest.where} does not arrive in the virtual host {identity.host!r} of the "
                    f"broker at {place}. --plugin, --gateway and --amqp must be of the same broker."
                )
    except BrokerRefusalError as refusal:
        why = str(refusal).rstrip(".")
        raise GreetingError(
            f"the broker at {place} refuses {identity.amqp_login!r} a queue: {why}.\n{_rights(identity)}"
        ) from None
    except BrokerLostError as lost:
        raise GreetingError(f"the broker at {place}: {str(lost).rstrip('.')}.") from None
    finally:
        try:
            await broker.delete_queue(queue)
        except BrokerRefusalError:
            pass  # who may not delete it could not declare it
        except BrokerLostError:
            leftovers.add(f"queue {queue}")


async def _arrived(broker: Broker, queue: str, side: Side) -> bool:
    for _ in range(_ATTEMPTS):
        message = await broker.take(queue)
        if message:
            return message.body == side.encode()
        await asyncio.sleep(_PAUSE)
    return False


class _Guest:
    """A client that a server may let in.

    Args:
        side: which of the two the server should be.
        address: of the server.
        identity: who the client is.
    """

    def __init__(self, side: Side, address: Address, identity: Identity) -> None:
        self.where = f"the {side} at {address[0]}:{address[1]}"
        self.server = ""
        self._side = side
        self._identity = identity
        self._peer = SocketPeer(address, _PATIENCE)

    async def log_in(self) -> None:
        """Send CONNECT, and learn what the server calls itself."""
        frame = await self._asked(_CONNECT, {}, "CONNECT")
        if frame.command != b"CONNECTED":
            raise GreetingError(self._refusal(frame))
        self.server = next((readable(line[7:]) for line in frame.headers if line.startswith(b"server:")), "")
        other = next(other for known, other in SERVER_NAMES.items() if known != self._side)
        if self.server.startswith(f"{other}/"):
            raise GreetingError(
                f"{self.where} calls itself {self.server}. Are --plugin and --gateway the wrong way round?"
            )

    async def send(self, queue: str) -> None:
        """Send a message to a queue that exists; its body is the name of the side."""
        frame = await self._asked(_SEND, {"queue": queue.encode(), "side": self._side.encode()}, "SEND")
        if frame.command != b"RECEIPT":
            login = self._identity.login
            raise GreetingError(f"{self.where} refuses {login!r} a SEND: {_words(frame)}\n{_rights(self._identity)}")

    async def leave(self) -> None:
        """Close the connection."""
        await self._peer.close()

    async def _asked(self, text: str, values: Mapping[str, bytes], command: str) -> ServerFrame:
        try:
            async with asyncio.timeout(_PATIENCE * 2):
                await self._peer.send("C", render(text, {**self._identity.header_scope, **values}))
                received = await self._peer.receive("C")
        except OSError as error:
            why = (error.strerror or str(error) or "no answer").rstrip(".")  # TimeoutError is an OSError, too
            raise GreetingError(
                f"{self.where} cannot be reached: {why}. Is it running, and is this its STOMP port?"
            ) from None
        except (SilenceError, WireError) as error:
            why = str(error).rstrip(".")
            raise GreetingError(
                f"{self.where} does not answer as a STOMP server does: {why}. Is this its port?"
            ) from None
        if not isinstance(received, ServerFrame):
            did = "closes the connection" if isinstance(received, Closed) else "says nothing but heart-beats"
            port = "Is this its port for STOMP without TLS?"
            raise GreetingError(f"{self.where} {did} instead of answering {command}. {port}")
        return received

    def _refusal(self, frame: ServerFrame) -> str:
        login, host = self._identity.login, self._identity.host
        return (
            f"{self.where} refuses the login {login!r} to the virtual host {host!r}: {_words(frame)}\n"
            "Give another user with --login and the passcode in STOMP_PASSCODE or --passcode-file, "
            "another virtual host with --host."
        )


@asynccontextmanager
async def _logged_in(side: Side, address: Address, identity: Identity) -> AsyncIterator[_Guest]:
    guest = _Guest(side, address, identity)
    try:
        await guest.log_in()
        yield guest
    finally:
        await guest.leave()


def _words(frame: ServerFrame) -> str:
    headers = [readable(line) for line in frame.headers if line.startswith(b"message:")]
    return ", ".join([readable(frame.command), *headers, *readable(frame.body).split("\n")]).rstrip(", ")


def _rights(identity: Identity) -> str:
    return f"The user needs the right to configure, write and read everything in the virtual host {identity.host!r}."
