"""A session that sends much publishes on a bulk link while it does, so that others of its login need not wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pamqp import body, commands
from pamqp.base import Frame

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.session.context import State
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, play, usual_answer

FLOOD, NUMBERS = 40, 5
SLOWLY = 0.06
"""A marker's way to the broker and back, in seconds: so long is a session held that fills the window."""


@pytest.fixture(autouse=True)
def slow_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.scripted_broker._LATENCY", SLOWLY)


class Publishes:
    """Confirms what is published, and notes on which links it was."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        self.is_confirming = True
        self._broker = broker
        self._sequences: Counter[tuple[Link, int]] = Counter()
        broker.script = self.answer

    def answer(self, link: Link, frame: Frame) -> Frame | None:
        key = link, self._broker.channel
        if isinstance(frame, commands.Channel.Open):
            self._sequences[key] = 0
        if not isinstance(frame, body.ContentBody):
            return usual_answer(frame)
        self.bodies.append((link.purpose, frame.value.strip()))
        self._sequences[key] += 1
        return commands.Basic.Ack(self._sequences[key]) if self.is_confirming else None

    @property
    def links(self) -> list[str]:
        """The purposes of the links, each as often as it changed from one message to the next."""
        purposes = [purpose for purpose, _ in self.bodies]
        return [each for each, before in zip(purposes, [None, *purposes], strict=False) if each != before]

    @property
    def numbers(self) -> list[int]:
        return [int(each) for _, each in self.bodies]


def opened(broker: ScriptedBroker) -> list[str]:
    return [link.purpose for link in broker.links]


async def send(client: BridgedClient, numbers: range, size: int = 20 << 10) -> None:
    """Send numbers, with a receipt each and in messages of this size."""
    for number in numbers:
        text = str(number).rjust(size)
        await client.say(f"SEND\ndestination:/topic/t\nreceipt:{number}\n\n{text}", seconds=0.0)


def receipts(client: BridgedClient) -> list[int]:
    lines = client.output.split(b"receipt-id:")[1:]
    return sorted(int(line.split(b"\n")[0]) for line in lines)


async def neighbour_of(client: BridgedClient, broker: ScriptedBroker) -> BridgedClient:
    """Another session with the same login, which has published, too."""
    neighbour = BridgedClient(broker, client.session.settings, client)
    await neighbour.connect()
    await neighbour.say("SEND\ndestination:/topic/t\n\n0")
    return neighbour


async def calm(client: BridgedClient, seconds: int = 6) -> None:
    for _ in range(seconds):
        client.bridge.time_passed()
        await asyncio.sleep(1)


def test_a_session_moves_to_a_bulk_link_while_it_sends_much_and_back_and_its_messages_stay_in_order() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        publishes = Publishes(broker)
        await send(client, range(1))
        neighbour = await neighbour_of(client, broker)
        del publishes.bodies[:]
        await send(client, range(1, FLOOD))
        await asyncio.sleep(2)
        assert publishes.links == ["publish"], "what was sent before the broker was known to be slow"
        await send(client, range(FLOOD, 2 * FLOOD))
        await asyncio.sleep(2)
        assert publishes.links == ["publish", "bulk"]
        await neighbour.say("SEND\ndestination:/topic/t\n\n0")
        assert publishes.bodies.pop() == ("publish", b"0")
        await calm(client)
        await send(client, range(2 * FLOOD, 2 * FLOOD + NUMBERS))
        await asyncio.sleep(2)
        assert publishes.links == ["publish", "bulk", "publish"]
        assert publishes.numbers == list(range(1, 2 * FLOOD + NUMBERS))
        assert receipts(client) == list(range(2 * FLOOD + NUMBERS))
        assert opened(broker) == ["publish", "bulk"]

    play(scene)


def test_sessions_that_send_much_share_one_bulk_link() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        publishes = Publishes(broker)
        await send(client, range(1))
        others = [await neighbour_of(client, broker) for _ in range(5)]
        await neighbour_of(client, broker)
        await asyncio.gather(*(send(each, range(1, FLOOD)) for each in (client, *others)))
        await asyncio.sleep(5)
        del publishes.bodies[:]
        await asyncio.gather(*(send(each, range(FLOOD, FLOOD + NUMBERS)) for each in (client, *others)))
        await asyncio.sleep(5)
        assert publishes.links == ["bulk"]
        assert opened(broker) == ["publish", "bulk"]
        assert all(receipts(each)[-1] == FLOOD + NUMBERS - 1 for each in (client, *others))

    play(scene)


def test_a_session_that_disturbs_nobody_stays_where_it_is() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        Publishes(broker)
        await send(client, range(1))
        await asyncio.sleep(1)
        await send(client, range(1, 8 * FLOOD), 100 << 10)
        await asyncio.sleep(5)
        assert opened(broker) == ["publish"]
        assert receipts(client) == list(range(8 * FLOOD))

    play(scene, confirm_window={"messages": 10_000})


def test_a_burst_that_the_broker_soon_has_moves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.scripted_broker._LATENCY", 0.02)

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        Publishes(broker)
        await send(client, range(1))
        await neighbour_of(client, broker)
        for burst in range(10):
            await send(client, range(1 + 10 * burst, 11 + 10 * burst))
            await asyncio.sleep(2)
        assert opened(broker) == ["publish"]

    play(scene)


@pytest.mark.parametrize("error", [UpstreamError(530, "NOT_ALLOWED - connection limit"), None])
def test_a_session_goes_on_if_the_broker_opens_no_bulk_link(error: UpstreamError | None) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        publishes, asked, usual = Publishes(broker), list[str](), client.links._open_link

        async def refuse(host: VirtualHost, credentials: Credentials, purpose: str, *more: Any) -> Link:  # noqa: ANN401
            asked.append(purpose)
            if error is not None and purpose == "bulk":
                raise error
            broker.is_gone = purpose == "bulk"
            return await usual(host, credentials, purpose, *more)

        client.links._open_link = refuse
        await send(client, range(1))
        await neighbour_of(client, broker)
        for number in range(1, 4):
            await send(client, range((number - 1) * FLOOD + 1, number * FLOOD + 1))
            await asyncio.sleep(6)
        assert publishes.links == ["publish"]
        assert receipts(client) == list(range(3 * FLOOD + 1))
        # One that refuses is not asked again and again.
        assert asked.count("bulk") == (1 if error else 3)

    play(scene)


@pytest.mark.parametrize("purpose", ["publish", "bulk"])
@pytest.mark.parametrize("moment", [1.1, 1.9, 2.1, 2.5, 3.1, 3.5, 4.1, 5.1])
def test_a_link_that_is_lost_during_a_move_loses_nothing(purpose: str, moment: float) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        publishes = Publishes(broker)
        await send(client, range(1))
        await neighbour_of(client, broker)
        del publishes.bodies[:]
        await send(client, range(1, FLOOD))
        await asyncio.sleep(moment * SLOWLY)
        assert opened(broker) == ["publish", "bulk"]
        await send(client, range(FLOOD, FLOOD + NUMBERS))
        broker.lose(*(link for link in broker.links if link.purpose == purpose))
        await asyncio.sleep(10)
        assert client.session.state is State.CONNECTED
        assert receipts(client) == list(range(FLOOD + NUMBERS))
        # Some came twice, as after every loss.
        first = list(dict.fromkeys(publishes.numbers))
        assert [each for each in first if each] == list(range(1, FLOOD + NUMBERS))

    play(scene)


def test_a_bulk_link_that_is_lost_later_is_opened_again() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        publishes = Publishes(broker)
        await send(client, range(1))
        await neighbour_of(client, broker)
        await send(client, range(1, FLOOD))
        await asyncio.sleep(5)
        broker.lose(*(link for link in broker.links if link.purpose == "bulk"))
        await send(client, range(FLOOD, FLOOD + NUMBERS))
        await asyncio.sleep(5)
        assert receipts(client) == list(range(FLOOD + NUMBERS))
        assert opened(broker) == ["publish", "bulk", "bulk"]
        assert publishes.links[-1] == "bulk"

    play(scene)


def test_a_session_whose_messages_are_not_confirmed_soon_does_not_move_and_goes_on() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        publishes = Publishes(broker)
        await send(client, range(1))
        await neighbour_of(client, broker)
        publishes.is_confirming = False
        del publishes.bodies[:]
        await send(client, range(1, FLOOD))
        await asyncio.sleep(5)
        await send(client, range(FLOOD, FLOOD + NUMBERS))
        await asyncio.sleep(5)
        assert publishes.links == ["publish"]
        assert publishes.numbers == list(range(1, FLOOD + NUMBERS))

    play(scene)


@pytest.mark.parametrize(
    "settings", [{"upstream": {"ride_through": 0}}, {"confirms": "on_receipt"}], ids=["ride_through", "confirms"]
)
def test_a_session_whose_messages_nobody_would_miss_does_not_move(settings: dict[str, Any]) -> None:
    """If a link went in the middle of the move, nobody would know of what was on its way."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        broker.script = Publishes(broker).answer
        text = " " * (20 << 10)
        await client.say("SEND\ndestination:/topic/t\n\n0")
        await neighbour_of(client, broker)
        for _ in range(FLOOD):
            await client.say(f"SEND\ndestination:/topic/t\n\n{text}", seconds=0.0)
        await asyncio.sleep(5)
        assert [link.purpose for link in broker.links] == ["publish"]
        assert b"ERROR" not in client.output

    play(scene, **settings)


def test_a_session_stays_on_the_bulk_link_while_the_broker_opens_no_other() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        publishes = Publishes(broker)
        await send(client, range(1))
        neighbour = await neighbour_of(client, broker)
        await send(client, range(1, FLOOD))
        await asyncio.sleep(2)
        await send(client, range(FLOOD, 2 * FLOOD))
        await asyncio.sleep(2)
        neighbour.leave()

        async def refuse(*whose: object) -> Link:
            raise UpstreamError(530, "NOT_ALLOWED - connection limit")

        client.links._open_link = refuse
        broker.lose(*(link for link in broker.links if link.purpose == "publish"))
        await calm(client)
        await send(client, range(2 * FLOOD, 2 * FLOOD + NUMBERS))
        await asyncio.sleep(2)
        assert publishes.links[-1] == "bulk"
        assert receipts(client) == list(range(2 * FLOOD + NUMBERS))

    play(scene)


def test_bulk_links_can_be_switched_off() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        Publishes(broker)
        await send(client, range(1))
        await neighbour_of(client, broker)
        for number in range(3):
            await send(client, range(1 + number * FLOOD, 1 + (number + 1) * FLOOD))
            await asyncio.sleep(2)
        assert opened(broker) == ["publish"]
        assert receipts(client) == list(range(1 + 3 * FLOOD))

    play(scene, bulk_links=False)
