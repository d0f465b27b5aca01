"""The first question to a server: is it there, does it speak STOMP, and does it let the user in?"""

import asyncio

from gateway.errors import GatewayError
from gateway.parity.identity import Identity
from gateway.parity.script import Side
from gateway.parity.text import readable, render
from gateway.parity.wire import Address, Closed, ServerFrame, SilenceError, SocketPeer, WireError

_PATIENCE = 10.0  # seconds
_CONNECT = "CONNECT\naccept-version:1.2\nhost:{host}\nlogin:{login}\npasscode:{passcode}\n\n"
_NAMES: dict[Side, str] = {"plugin": "RabbitMQ", "gateway": "stomp-gateway"}


class GreetingError(GatewayError):
    """A server that cannot be asked anything; the text says what to do."""


async def greet(side: Side, address: Address, identity: Identity) -> str:
    """Log in to a server, and return what it calls itself; the empty text where it does not say.

    Args:
        side: which of the two it should be.
        address: host and port.
        identity: who logs in.

    Raises:
        GreetingError: it cannot be reached, does not speak STOMP, refuses the login, or is the other one.
    """
    where = f"the {side} at {address[0]}:{address[1]}"
    frame = await _first_frame(where, address, render(_CONNECT, identity.header_scope) + b"\0")
    if frame.command != b"CONNECTED":
        raise GreetingError(_refusal(where, frame, identity))
    name = next((line[7:].decode() for line in frame.headers if line.startswith(b"server:")), "")
    other = next(other for known, other in _NAMES.items() if known != side)
    if name.startswith(f"{other}/"):
        raise GreetingError(f"{where} calls itself {name}. Are --plugin and --gateway the wrong way round?")
    return name


async def _first_frame(where: str, address: Address, octets: bytes) -> ServerFrame:
    peer = SocketPeer(address, _PATIENCE)
    try:
        async with asyncio.timeout(_PATIENCE * 2):
            await peer.send("C", octets)
            received = await peer.receive("C")
    except OSError as error:
        why = error.strerror or str(error) or "no answer"  # TimeoutError is an OSError, too
        raise GreetingError(f"{where} cannot be reached: {why}. Is it running, and is this its STOMP port?") from None
    except (SilenceError, WireError) as error:
        raise GreetingError(f"{where} does not answer as a STOMP server does: {error}. Is this its port?") from None
    finally:
        await peer.close()
    if not isinstance(received, ServerFrame):
        did = "closes the connection" if isinstance(received, Closed) else "says nothing but heart-beats"
        raise GreetingError(f"{where} {did} instead of answering CONNECT. Is this its port for STOMP without TLS?")
    return received


def _refusal(where: str, frame: ServerFrame, identity: Identity) -> str:
    headers = [readable(line) for line in frame.headers if line.startswith(b"message:")]
    words = ", ".join([readable(frame.command), *headers, *readable(frame.body).split("\n")]).rstrip(", ")
    return (
        f"{where} refuses the login {identity.login!r} to the virtual host {identity.host!r}: {words}\n"
        "Give another user with --login and the passcode in STOMP_PASSCODE or --passcode-file, "
        "another virtual host with --host."
    )
