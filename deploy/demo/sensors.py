"""The traffic of sensors: many short sessions, journalled at level session (sums every ten seconds)."""

import asyncio
from typing import Final

from deploy.demo.client import ClientFactory

HOST: Final = "sensors"
USERS: Final = ("thermostat", "collector", "panel")

_READING: Final = b'{"celsius": 21.5, "battery": 0.87}'
_ROOMS: Final = 12
_BURST: Final = 20
_PREFETCH: Final = 200


class Sensors:
    """The scenes of sensors.

    Args:
        clients: connects to the gateway.
        size: of a round; each unit is 20 thermostats that send 20 messages each.
    """

    def __init__(self, clients: ClientFactory, size: int) -> None:
        self._clients = clients
        self._size = size

    async def play(self, number: int) -> None:
        """Play every scene once, in the round with this number (from 0)."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._temperatures())
            group.create_task(self._readings())

    async def _temperatures(self) -> None:
        """Each thermostat sends its values and disconnects; a collector reads all of them, a panel one room."""
        thermostats = 20 * self._size
        count = thermostats * _BURST
        async with (
            self._clients.session(HOST, "collector", "1.1") as collector,
            self._clients.session(HOST, "panel", "1.0") as panel,
        ):
            await collector.subscribe("/topic/temperature.*", "all", "client", prefetch_count=str(_PREFETCH))
            await panel.subscribe("/topic/temperature.0", "room")

            async def collect() -> None:
                for position in range(1, count + 1):
                    message = await collector.message()
                    if position % 100 == 0 or position == count:
                        collector.ack(message, covers=position % 100 or 100)

            async with asyncio.TaskGroup() as group:
                group.create_task(collect())
                for thermostat in range(thermostats):
                    await self._thermostat(thermostat)
            for _ in range(len(range(0, thermostats, _ROOMS)) * _BURST):
                await panel.message()

    async def _thermostat(self, number: int) -> None:
        async with self._clients.session(HOST, "thermostat", ("1.0", "1.1", "1.2")[number % 3]) as client:
            for _ in range(_BURST):
                client.send(f"/topic/temperature.{number % _ROOMS}", _READING)

    async def _readings(self) -> None:
        """Confirmed and acknowledged messages, with a consumer whose connection is cut once."""
        count = 400 * self._size
        async with self._clients.session(HOST, "thermostat") as client:
            for _ in range(count):
                client.send("/queue/readings", _READING, receipt=True, persistent="true")
                await client.confirmed(_PREFETCH)
            await client.confirmed()
        async with self._clients.session(HOST, "collector") as client:
            await client.subscribe("/queue/readings", "readings", "client-individual", prefetch_count="100")
            for _ in range(100):
                await client.message()
            client.cut()
        async with self._clients.session(HOST, "collector") as client:
            await client.subscribe("/queue/readings", "readings", "client-individual", prefetch_count="100")
            for _ in range(count):
                client.ack(await client.message())
