"""Mistakes of clients, each of which is answered with one ERROR."""

import asyncio
from typing import Final

from deploy.demo import sensors, shop
from deploy.demo.client import Client, ClientFactory
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
"""The message of the ERROR, and the frame that causes it."""

MISTAKES: Final = len(_FRAMES) + 4
"""ERRORs per round."""


async def play(clients: ClientFactory) -> None:
    """Make every mistake once; raises LocalError if the gateway sends another ERROR than expected."""
    async with asyncio.TaskGroup() as group:
        for message, command, headers in _FRAMES:
            group.create_task(_frame(clients, message, command, headers))
        group.create_task(_malformed_frame(clients))
        group.create_task(_duplicate_id(clients))
        group.create_task(_wrong_passcode(clients))
        group.create_task(_unknown_virtual_host(clients))


async def _expect(client: Client, message: str) -> None:
    error = await client.error()
    if error.headers["message"] != message:
        raise LocalError(f"Expected the ERROR {message!r}, but the gateway sent {error.headers} {error.body!r}.")


async def _frame(clients: ClientFactory, message: str, command: str, headers: Headers) -> None:
    async with clients.session(shop.HOST, "mobile") as client:
        client.write(command, **headers)
        await _expect(client, message)
        client.cut()


async def _malformed_frame(clients: ClientFactory) -> None:
    async with clients.session(shop.HOST, "mobile") as client:
        client.write_raw(b"SEND\nthis line has no colon\n\n\0")
        await _expect(client, "Malformed frame")
        client.cut()


async def _duplicate_id(clients: ClientFactory) -> None:
    async with clients.session(sensors.HOST, "panel") as client:
        await client.subscribe("/topic/temperature.0", "same")
        client.write("SUBSCRIBE", destination="/topic/temperature.1", id="same")
        await _expect(client, "Duplicated subscription identifier")
        client.cut()


async def _wrong_passcode(clients: ClientFactory) -> None:
    async with clients.connection(shop.HOST) as client:
        client.write("CONNECT", accept_version="1.2", host=shop.HOST, login="mobile", passcode="forgotten")
        await _expect(client, "Bad CONNECT")


async def _unknown_virtual_host(clients: ClientFactory) -> None:
    async with clients.connection(shop.HOST) as client:
        client.write("CONNECT", accept_version="1.2", host="warehouse-9", login="mobile", passcode="any")
        await _expect(client, "Bad CONNECT")
