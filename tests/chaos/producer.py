"""A client that sends messages, singly or in transactions, and sends again what was not answered."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Final

from tests.chaos.client import ChaosClient, Scene, Talk
from tests.chaos.messages import content, copy_of, labelled
from tests.chaos.recording import REPLIES, STRANGER, Confirmed, Copy, Delivered, Sent
from tests.chaos.schedule import ProducerPlan, Receipts
from tests.support.stomp_client import ConnectionOverError, Frame

_SOME: Final = 5
"""Under ``Receipts.SOME`` each fifth unit asks for a receipt."""
_ASKS_AGAIN_AFTER: Final = 0.3
_ABORTED: Final = 9
"""Each ninth transaction is aborted."""


class Producer(ChaosClient):
    """Carries out a plan.

    A unit is a message, or a transaction. Units that asked for a receipt and got none are sent again on the next
    connection, in order and before anything new. Others are sent once.

    Args:
        scene: of the run.
        plan: what it sends.
    """

    def __init__(self, scene: Scene, plan: ProducerPlan) -> None:
        super().__init__(scene, plan.name, plan.transport, "1.2")
        self.plan = plan
        self._next = 0
        self._unanswered: dict[int, None] = {}
        self._answered = asyncio.Event()
        self._done = False
        self._replied = asyncio.Event()
        self._last_reply = STRANGER
        chance = random.Random(f"{scene.schedule.seed}/{plan.name}")  # noqa: S311 - to be repeated
        size = max(1, plan.unit_size)
        self._persistent = [chance.random() < plan.persistent for _ in range(plan.units * size)]

    @property
    def is_done(self) -> bool:
        """Whether everything is sent and answered."""
        return self._done

    async def converse(self, talk: Talk) -> None:
        """Send what is left."""
        sent: list[Copy] = []
        for unit in list(self._unanswered):
            await self._send(talk, unit, sent)
        until = min(self.plan.units, self._next + (self.plan.stays or self.plan.units))
        while self._next < until:
            await self._room(talk)
            unit, self._next = self._next, self._next + 1
            await self._send(talk, unit, sent)
            if self._next % self.plan.burst == 0:
                # Not longer than the session lasts.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.plan.pace):
                        await talk.over.wait()
        while self._unanswered:
            await self._room(talk, 1)
        if self.plan.requests:
            await self._until_replied(talk)
        await self.leave(talk)
        # The receipt of DISCONNECT speaks for everything on this connection.
        self._confirm(sent, of_disconnect=True)
        self._done = self._next == self.plan.units

    def heed(self, frame: Frame) -> None:
        """Record a reply."""
        seed = self.scene.schedule.seed
        copy = copy_of(seed, frame.headers)
        event = Delivered(
            at=self.scene.clock(),
            consumer=self.name,
            connection=self.connection,
            queue=f"{REPLIES}{self.name}",
            copy=copy,
            redelivered=frame.headers.get("redelivered") == "true",
            whole=frame.body == content(seed, self.plan, copy.number).body,
        )
        self.scene.recording.add(event)
        self._last_reply = copy
        self._replied.set()

    async def _until_replied(self, talk: Talk) -> None:
        """Ask until a reply comes, however many are lost with a link: the reply queue of this session must work."""
        number = len(self._persistent)
        while self._last_reply.number < len(self._persistent) or self._last_reply.connection != self.connection:
            headers, body = self._message(Copy(self.name, number, self.connection), 0)
            await talk.write("SEND", headers, body)
            number += 1
            self._replied.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASKS_AGAIN_AFTER):
                    await self._replied.wait()
            if talk.over.is_set():
                raise ConnectionOverError

    async def _room(self, talk: Talk, window: int = 0) -> None:
        """Wait until fewer units than the window are unanswered."""
        while len(self._unanswered) >= (window or self.plan.window):
            if talk.over.is_set():
                raise ConnectionOverError
            self._answered.clear()
            await self._answered.wait()

    async def _send(self, talk: Talk, unit: int, sent: list[Copy]) -> None:
        size = max(1, self.plan.unit_size)
        copies = [Copy(self.name, unit * size + each, self.connection) for each in range(size)]
        wants_receipt = self.plan.receipts is Receipts.ALL or (
            self.plan.receipts is Receipts.SOME and unit % _SOME == _SOME - 1
        )
        if wants_receipt:
            self._unanswered[unit] = None
        if self.plan.unit_size:
            answer = await self._transaction(talk, unit, copies, sent, wants_receipt)
        else:
            answer = await self._single(talk, unit, copies[0], wants_receipt)
            sent += copies
        if answer is not None:
            is_aborted = self._is_aborted(unit)
            answer.add_done_callback(lambda done: self._is_answered(done, unit, () if is_aborted else copies))

    async def _single(self, talk: Talk, unit: int, copy: Copy, wants_receipt: bool) -> asyncio.Future[None] | None:
        headers, body = self._message(copy, unit)
        if wants_receipt:
            return await talk.ask("SEND", headers, body)
        await talk.write("SEND", headers, body)
        return None

    async def _transaction(
        self, talk: Talk, unit: int, copies: Sequence[Copy], sent: list[Copy], wants_receipt: bool
    ) -> asyncio.Future[None] | None:
        name = {"transaction": f"t{unit}"}
        await talk.write("BEGIN", name)
        for copy in copies:
            headers, body = self._message(copy, unit)
            await talk.write("SEND", {**headers, **name}, body)
        command = "ABORT" if self._is_aborted(unit) else "COMMIT"
        if command == "COMMIT":
            sent += copies
            await self._cut_if_planned(talk, unit)
        if wants_receipt:
            return await talk.ask(command, name)
        await talk.write(command, name)
        return None

    async def _cut_if_planned(self, talk: Talk, unit: int) -> None:
        if self.name not in self.scene.at_commit:
            return
        # When this is answered, the gateway has everything before the COMMIT.
        await (await talk.ask("BEGIN", {"transaction": f"behind t{unit}"}))
        # The answer takes long while the broker is away: by then the fault may have been given up.
        cut = self.scene.at_commit.pop(self.name, None)
        if cut is not None:
            cut()

    def _is_aborted(self, unit: int) -> bool:
        return self.plan.unit_size > 0 and unit % _ABORTED == _ABORTED - 1

    def _message(self, copy: Copy, unit: int) -> tuple[dict[str, str], bytes]:
        """Headers and body of a SEND, recorded."""
        place = self.scene.schedule.place(self.plan.places[unit % len(self.plan.places)])
        persistent = copy.number < len(self._persistent) and self._persistent[copy.number]
        found = content(self.scene.schedule.seed, self.plan, copy.number)
        headers = {"destination": place.destination, **labelled(self.scene.schedule.seed, copy, found)}
        if persistent:
            headers["persistent"] = "true"
        if self.plan.requests:
            headers["reply-to"] = "/temp-queue/replies"
        number = unit if self.plan.unit_size and copy.number < len(self._persistent) else None
        event = Sent(self.scene.clock(), copy, place.name, persistent, self._is_aborted(unit), number)
        self.scene.recording.add(event)
        return headers, found.body

    def _is_answered(self, done: asyncio.Future[None], unit: int, copies: Sequence[Copy]) -> None:
        self._answered.set()
        with contextlib.suppress(ConnectionOverError, asyncio.CancelledError):
            done.result()
            self._unanswered.pop(unit, None)
            self._confirm(copies)

    def _confirm(self, copies: Sequence[Copy], *, of_disconnect: bool = False) -> None:
        for copy in copies:
            self.scene.recording.add(Confirmed(self.scene.clock(), copy, of_disconnect))
