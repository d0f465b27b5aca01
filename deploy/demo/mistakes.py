"""What clients get wrong: each mistake is one ERROR."""

import asyncio
from typing import Final

from deploy.demo import sensors, shop
from deploy.demo.client import Client, Reception
from deploy.local.errors import LocalError

Headers = dict[str, str]

_FRAMES: Final[tuple[tuple[str, str, Headers], ...]] = (
    ("Unknown destination", "SEND", {"destination": "/nowhere/at/all"}),
    ("Invalid destination", "SEND", {"destination": "/exchange/"}),
    ("Missing destination", "SEND", {}),
    ("Subscription not found", "ACK", {"id": "T_unknown@@session-none@@1"}),
    ("Missing header", "ACK", {}),
    ("Bad transaction", "COMMIT", {"transaction": "never-begun"}),
    ("No subscription found", "UNSUBSCRIBE", {"id": "nobody"}),
    ("not_found", "SUBSCRIBE", {"destination": "/amq/queue/missing", "id": "missing"}),
    ("access_refused", "SUBSCRIBE", {"destination": "/queue/secret", "id": "secret"}),
    ("Processing error", "SUBSCRIBE", {"destination": "/queue/orders", "id": "o", "prefetch-count": "many"}),
    ("Bad command", "PUBLISH", {"destination": "/queue/orders"}),
)
"""The ERROR, and the frame that asks for it."""

MISTAKES: Final = len(_FRAMES) + 4
"""How many of them a round has."""


async def play(reception: Reception) -> None:
    """Make every mistake once.

    Args:
        reception: where to connect.

    Raises:
        LocalError: the gateway takes one for something else.
    """
    async with asyncio.TaskGroup() as group:
        for message, command, headers in _FRAMES:
            group.create_task(_frame(reception, message, command, headers))
        group.create_task(_octets(reception))
        group.create_task(_twice(reception))
        group.create_task(_passcode(reception))
        group.create_task(_virtual_host(reception))


async def _expect(client: Client, message: str) -> None:
    error = await client.error()
    if error.headers["message"] != message:
        raise LocalError(f"Expected the ERROR {message!r}, but the gateway sent {error.headers} {error.body!r}.")


async def _frame(reception: Reception, message: str, command: str, headers: Headers) -> None:
    async with reception.session(shop.HOST, "mobile") as client:
        client.write(command, **headers)
        await _expect(client, message)
        client.hang_up()


async def _octets(reception: Reception) -> None:
    async with reception.session(shop.HOST, "mobile") as client:
        client.write_octets(b"SEND\nthis line has no colon\n\n\0")
        await _expect(client, "Malformed frame")
        client.hang_up()


async def _twice(reception: Reception) -> None:
    async with reception.session(sensors.HOST, "panel") as client:
        await client.subscribe("/topic/temperature.0", "same")
        client.write("SUBSCRIBE", destination="/topic/temperature.1", id="same")
        await _expect(client, "Duplicated subscription identifier")
        client.hang_up()


async def _passcode(reception: Reception) -> None:
    async with reception.connection(shop.HOST) as client:
        client.write("CONNECT", accept_version="1.2", host=shop.HOST, login="mobile", passcode="forgotten")
        await _expect(client, "Bad CONNECT")


async def _virtual_host(reception: Reception) -> None:
    async with reception.connection(shop.HOST) as client:
        client.write("CONNECT", accept_version="1.2", host="warehouse-9", login="mobile", passcode="any")
        await _expect(client, "Bad CONNECT")
