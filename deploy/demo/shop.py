"""The traffic of a shop: its virtual host is journalled message by message."""

import asyncio
from typing import Final

from deploy.demo.client import Client, ClientFactory

HOST: Final = "shop"
USERS: Final = ("storefront", "warehouse", "billing", "pricing", "mobile", "audit")
QUEUES: Final[dict[str, dict[str, object]]] = {
    "stock": {},
    "tickets": {"x-max-length": 5, "x-overflow": "reject-publish"},
}
"""Queues that exist before any client connects, with their arguments."""

_ORDER: Final = b'{"order": 4711, "items": [{"sku": "a-17", "count": 2}, {"sku": "b-3", "count": 1}], "express": false}'
_PICTURE: Final = bytes(8192)
_SLOW_SECONDS: Final = 1.0
_WINDOW: Final = 200


class Shop:
    """The scenes of the shop, which are played at the same time and may be repeated.

    Args:
        clients: connects to the gateway.
        size: about how many hundred messages a scene has.
    """

    def __init__(self, clients: ClientFactory, size: int) -> None:
        self._clients = clients
        self._hundred = 100 * size

    async def play(self, number: int) -> None:
        """Play every scene once, in the round with this number (from 0)."""
        async with asyncio.TaskGroup() as group:
            for scene in (
                self._orders,
                self._invoices,
                self._tasks,
                self._parcels,
                self._bookings,
                self._questions,
                self._alerts,
                self._stock,
                self._tickets,
                self._pictures,
                self._import,
                self._prices,
            ):
                group.create_task(scene(number), name=scene.__name__)

    async def _orders(self, number: int) -> None:
        """Persistent messages, each with a receipt and an ACK of its own."""
        count = 6 * self._hundred

        async def sell() -> None:
            async with self._clients.session(HOST, "storefront") as client:
                for order in range(count):
                    client.send("/queue/orders", _ORDER, receipt=True, persistent="true", priority=str(order % 10))
                    await client.confirmed(_WINDOW)
                await client.confirmed()

        async def pack() -> None:
            async with self._clients.session(HOST, "warehouse") as client:
                await client.subscribe("/queue/orders", "orders", "client-individual", prefetch_count="100")
                for _ in range(count):
                    client.ack(await client.message())

        async with asyncio.TaskGroup() as group:
            group.create_task(pack())
            group.create_task(sell())

    async def _invoices(self, number: int) -> None:
        """Cumulative acknowledgements, and STOMP 1.1."""
        count, step = 4 * self._hundred, 40
        async with self._clients.session(HOST, "billing", "1.1") as client:
            await client.subscribe("/queue/invoices", "invoices", "client", prefetch_count="200")
            async with self._clients.session(HOST, "storefront", "1.1") as sender:
                for _ in range(count):
                    sender.send("/queue/invoices", _ORDER, receipt=True, persistent="true")
                for position in range(1, count + 1):
                    message = await client.message()
                    if position % step == 0 or position == count:
                        client.ack(message, covers=position % step or step)
                await sender.confirmed()

    async def _tasks(self, number: int) -> None:
        """Messages that are refused, delivered again, and then discarded."""
        count = 2 * self._hundred
        async with self._clients.session(HOST, "warehouse") as client:
            await client.subscribe("/queue/tasks", "tasks", "client-individual", prefetch_count="50")
            await self._fill("/queue/tasks", count, receipt=False)
            left, position = count, 0
            while left:
                message = await client.message()
                position += 1
                if message.headers.get("redelivered") == "true":
                    client.nack(message, requeue=False)
                elif position % 10 == 0:
                    client.nack(message, requeue=True)
                    continue
                else:
                    client.ack(message)
                left -= 1

    async def _parcels(self, number: int) -> None:
        """A consumer is cut with unacknowledged messages; the next one gets everything."""
        count, prefetch = self._hundred, 50
        await self._fill("/queue/parcels", count, receipt=True)
        async with self._clients.session(HOST, "warehouse", "1.1") as client:
            await client.subscribe("/queue/parcels", "parcels", "client", prefetch_count=str(prefetch))
            for _ in range(prefetch):
                await client.message()
            client.cut()
        async with self._clients.session(HOST, "warehouse", "1.1") as client:
            await client.subscribe("/queue/parcels", "parcels", "client-individual", prefetch_count=str(prefetch))
            for _ in range(count):
                client.ack(await client.message())

    async def _bookings(self, number: int) -> None:
        """Transactions of SENDs and of ACKs; every fourth one is aborted."""
        each, transactions = 5, self._hundred // 5
        async with self._clients.session(HOST, "billing") as client:
            for transaction in range(transactions):
                name = f"booking-{transaction}"
                client.begin(name)
                for _ in range(each):
                    client.send_in(name, "/queue/bookings", _ORDER, persistent="true")
                await (client.abort(name) if transaction % 4 == 3 else client.commit(name))  # noqa: PLR2004
        count = each * (transactions - transactions // 4)
        async with self._clients.session(HOST, "billing") as client:
            await client.subscribe("/queue/bookings", "bookings", "client-individual")
            got = [await client.message() for _ in range(count)]
            for attempt in ("first", "second"):
                client.begin(attempt)
                for message in got:
                    client.ack(message, transaction=attempt)
                await (client.abort(attempt) if attempt == "first" else client.commit(attempt))

    async def _questions(self, number: int) -> None:
        """Requests, and answers to a temporary queue."""
        count = self._hundred

        async def answer() -> None:
            async with self._clients.session(HOST, "pricing") as client:
                await client.subscribe("/queue/questions", "questions")
                ready.set()
                for _ in range(count):
                    question = await client.message()
                    correlation = question.headers["correlation-id"]
                    client.send(question.headers["reply-to"], b"42", correlation_id=correlation)

        async def ask() -> None:
            await ready.wait()
            async with self._clients.session(HOST, "mobile") as client:
                for question in range(count):
                    client.send(
                        "/queue/questions",
                        b"how much?",
                        reply_to="/temp-queue/answers",
                        correlation_id=f"q{question}",
                        expiration="60000",
                    )
                for _ in range(count):
                    await client.message()

        ready = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(answer())
            group.create_task(ask())

    async def _alerts(self, number: int) -> None:
        """Messages through an exchange, with STOMP 1.0."""
        count = self._hundred // 2
        async with self._clients.session(HOST, "mobile", "1.0") as client:
            await client.subscribe("/exchange/amq.direct/alerts", "alerts")
            async with self._clients.session(HOST, "storefront", "1.0") as sender:
                for _ in range(count):
                    sender.send("/exchange/amq.direct/alerts", b"shop closes soon")
                for _ in range(count):
                    await client.message()

    async def _stock(self, number: int) -> None:
        """A queue that was not declared by the gateway."""
        count, step = self._hundred, 10
        await self._fill("/amq/queue/stock", count, receipt=True, version="1.0")
        async with self._clients.session(HOST, "warehouse", "1.0") as client:
            await client.subscribe("/amq/queue/stock", "stock", "client", prefetch_count="20")
            for position in range(1, count + 1):
                message = await client.message()
                if position % step == 0:
                    client.ack(message, covers=step)

    async def _tickets(self, number: int) -> None:
        """A full queue: the broker accepts five messages and rejects the rest."""
        async with self._clients.session(HOST, "storefront") as client:
            for _ in range(10):
                client.send("/amq/queue/tickets", b"ticket", receipt=True)
            await client.confirmed()
        async with self._clients.session(HOST, "mobile") as client:
            await client.subscribe("/amq/queue/tickets", "tickets", "client-individual")
            for _ in range(5):
                client.ack(await client.message())

    async def _pictures(self, number: int) -> None:
        """A consumer that does not read for a while."""
        count = 2 * self._hundred
        async with self._clients.session(HOST, "mobile") as client:
            await client.subscribe("/queue/pictures", "pictures")
            client.pause_reading()
            async with self._clients.session(HOST, "storefront") as sender:
                for _ in range(count):
                    sender.send("/queue/pictures", _PICTURE, receipt=True)
                    await sender.confirmed(_WINDOW)
                await sender.confirmed()
            await asyncio.sleep(_SLOW_SECONDS)
            client.resume_reading()
            for _ in range(count):
                await client.message()

    async def _import(self, number: int) -> None:
        """More messages at once than the confirm window allows, so that the gateway holds the client."""
        count = 8 * self._hundred
        async with self._clients.session(HOST, "warehouse") as client:
            await client.subscribe("/queue/import", "import")
            async with self._clients.session(HOST, "storefront") as sender:
                for _ in range(count):
                    sender.send("/queue/import", _ORDER, receipt=True)
                await sender.confirmed()
            for _ in range(count):
                await client.message()

    async def _prices(self, number: int) -> None:
        """A topic with two subscribers of this round; the durable ones are in `Subscribers`."""
        count, goods = 3 * self._hundred, ("oil", "gas", "iron", "wood", "salt")
        async with (
            self._clients.session(HOST, "mobile") as everything,
            self._clients.session(HOST, "storefront", "1.1") as oil,
        ):
            await everything.subscribe("/topic/prices.*", "all")
            await oil.subscribe("/topic/prices.oil", "oil")
            async with self._clients.session(HOST, "pricing") as client:
                for position in range(count):
                    client.send(f"/topic/prices.{goods[position % len(goods)]}", b'{"price": 99.95, "currency": "EUR"}')
                for _ in range(count):
                    await everything.message()
                for _ in range(count // len(goods)):
                    await oil.message()

    async def _fill(self, destination: str, count: int, *, receipt: bool, version: str = "1.2") -> None:
        async with self._clients.session(HOST, "storefront", version) as client:
            for _ in range(count):
                client.send(destination, _ORDER, receipt=receipt)
            await client.confirmed()


class Subscribers:
    """Durable subscribers of the prices: one stays, one returns, one never returns, one unsubscribes.

    Args:
        clients: connects to the gateway.
        rounds: how many the shop will play.
    """

    def __init__(self, clients: ClientFactory, rounds: int) -> None:
        self._clients = clients
        self._rounds = rounds
        self._stay_connected: Client | None = None

    async def before(self, number: int) -> None:
        """Connect those that are due before the round with this number (from 0)."""
        if number == 0:
            await self._visit("audit", "archive", 0)  # never returns, though the topic goes on
            await self._visit("pricing", "trial", 0)
        if number == self._rounds // 2:
            await self._unsubscribe("pricing", "trial")
        if number % 2 and number < self._rounds - 2:
            # Returns until shortly before the end. At its first visit no message is waiting.
            await self._visit("billing", "statistics", 20 if number > 1 else 0)

    async def stay_connected(self, end: asyncio.Event) -> None:
        """Read with heart-beats until ``end`` is set and no message is left."""
        async with self._clients.session(HOST, "audit", "1.1", "1000,1000") as client:
            await client.subscribe(
                "/topic/prices.*", "risk", "client", prefetch_count="500", durable="true", auto_delete="false"
            )
            unacknowledged = 0
            while not (end.is_set() and not client.messages):
                await asyncio.sleep(0.5)
                client.write_raw(b"\n")
                unacknowledged = 0
                while client.messages:
                    message = client.messages.popleft()
                    unacknowledged += 1
                if unacknowledged:
                    client.ack(message, covers=unacknowledged)

    async def _visit(self, login: str, name: str, count: int) -> None:
        """Subscribe, acknowledge ``count`` messages, and disconnect without unsubscribing."""
        async with self._clients.session(HOST, login) as client:
            await self._subscribe(client, name)
            for _ in range(count):
                client.ack(await client.message())

    async def _unsubscribe(self, login: str, name: str) -> None:
        async with self._clients.session(HOST, login) as client:
            await self._subscribe(client, name)
            await client.ask("UNSUBSCRIBE", id=name, durable="true")

    async def _subscribe(self, client: Client, name: str) -> None:
        await client.subscribe(
            "/topic/prices.*",
            name,
            "client-individual",
            prefetch_count="50",
            durable="true",
            auto_delete="false",
        )
