"""Checks before the first transcript: both servers answer, accept the user, and have the same broker."""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import aclosing

from gateway.errors import GatewayError
from gateway.parity.amqp_broker import Broker, BrokerLostError, BrokerRefusalError, poll
from gateway.parity.broker_fixture import CleanupLog
from gateway.parity.play_state import Identity
from gateway.parity.rendering import readable, render
from gateway.parity.steps import Side
from gateway.parity.stomp_peer import Address, Closed, ServerFrame, ServerFrameError, SilenceError, SocketPeer

# In the server header of a gateway, and in no plugin's.
_GATEWAY = "stomp-gateway/"
_TIMEOUT = 10.0  # seconds
_ATTEMPTS = 80
_CONNECT = "CONNECT\naccept-version:1.2\nhost:{host}\nlogin:{login}\npasscode:{passcode}\n\n{nul}"
_SEND = "SEND\ndestination:/amq/queue/{queue}\nreceipt:sent\n\n{side}{nul}"


class PreflightError(GatewayError):
    """The servers cannot be compared; the text says what to do."""


async def server_name(side: Side, address: Address, identity: Identity) -> str:
    """Log in to a server and return its `server` header, empty if it sends none.

    Raises PreflightError if it cannot be reached, does not speak STOMP, refuses the login, or is the other server.
    """
    async with aclosing(_PreflightClient(side, address, identity)) as client:
        return await client.log_in()


async def check_same_broker(
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
            if not await _arrives(broker, queue, side):
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


async def _arrives(broker: Broker, queue: str, side: Side) -> bool:
    message = await poll(lambda: broker.take(queue), lambda message: message is not None, _ATTEMPTS)
    return message is not None and message.body == side.encode()


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
