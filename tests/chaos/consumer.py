"""A client that subscribes, records what comes, and acknowledges it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Sequence
from typing import Final

from tests.chaos.client import ChaosClient, Scene, Talk
from tests.chaos.messages import Content, content, copy_of, is_whole, labelled
from tests.chaos.recording import Copy, Delivered, Settled, Subscribed
from tests.chaos.schedule import PROBE, QUORUM_SUBSCRIPTIONS, Ack, ConsumerPlan, Kind
from tests.support.stomp_client import ConnectionOverError, Frame

_IDLE: Final = 0.1
"""Seconds without a message after which a batch that is not full is acknowledged."""


class Consumer(ChaosClient):
    """Carries out a plan.

    Args:
        scene: of the run.
        plan: what it does.
    """

    def __init__(self, scene: Scene, plan: ConsumerPlan) -> None:
        super().__init__(scene, plan.name, plan.transport, plan.version)
        self.plan = plan
        self._place = scene.schedule.place(plan.place)
        self._producers = {each.name: each for each in (*scene.schedule.producers, PROBE)}
        self._stop = asyncio.Event()
        self._leaves_at = plan.leaves
        self._incoming: asyncio.Queue[tuple[Frame, Copy]] = asyncio.Queue()
        self._refused: set[Copy] = set()
        self._transactions = itertools.count(1)
        self._done = False

    @property
    def is_done(self) -> bool:
        """Whether it was stopped, and left in good order."""
        return self._done

    def stop(self) -> None:
        """Ask it to leave when it has acknowledged what it has."""
        self._stop.set()

    def come_back(self) -> None:
        """Ask it to leave in good order, and to connect again."""
        self._leaves_at = self.scene.clock()

    async def converse(self, talk: Talk) -> None:
        """Subscribe, and acknowledge until it is time to go."""
        self._incoming = asyncio.Queue()
        await (await talk.ask("SUBSCRIBE", self._subscribe_headers()))
        self.scene.recording.add(Subscribed(self.scene.clock(), self.name, self.connection))
        await self._work(talk)
        await (await talk.ask("UNSUBSCRIBE", {"id": "s", "destination": self._place.destination}))
        await self.leave(talk)
        self._done = self._stop.is_set()

    def heed(self, frame: Frame) -> None:
        """Record a MESSAGE, and keep it for the acknowledgement."""
        seed = self.scene.schedule.seed
        copy = copy_of(seed, frame.headers)
        plan = self._producers.get(copy.producer)
        event = Delivered(
            at=self.scene.clock(),
            consumer=self.name,
            connection=self.connection,
            queue=self.plan.queue,
            copy=copy,
            redelivered=frame.headers.get("redelivered") == "true",
            whole=plan is not None and is_whole(frame, content(seed, plan, copy.number)),
        )
        self.scene.recording.add(event)
        self._incoming.put_nowait((frame, copy))

    def _subscribe_headers(self) -> dict[str, str]:
        headers = {"id": "s", "destination": self._place.destination, "ack": self._place.ack.value}
        if self.plan.prefetch:
            headers["prefetch-count"] = str(self.plan.prefetch)
        if self._place.kind is Kind.DURABLE:
            headers |= {"durable": "true", "auto-delete": "false", "x-queue-name": self.plan.queue}
            is_quorum = self.scene.is_cluster and self.plan.queue in QUORUM_SUBSCRIPTIONS
            headers |= {"x-queue-type": "quorum"} if is_quorum else {}
        if self._place.kind is Kind.STREAM:
            headers["x-stream-offset"] = "next"
        if self.plan.exclusive:
            headers["exclusive"] = "true"
        return headers

    async def _work(self, talk: Talk) -> None:
        held: list[tuple[Frame, Copy]] = []
        while not self._time_to_go():
            found = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE):
                    found = await self._incoming.get()
            if talk.over.is_set():
                raise ConnectionOverError
            if found is not None:
                held.append(found)
                await self._reply(talk, *found)
                if self.plan.pause:
                    await asyncio.sleep(self.plan.pause)
            if held and (found is None or len(held) >= self.plan.batch):
                await self._acknowledge(talk, held)
                held = []

    async def _reply(self, talk: Talk, frame: Frame, copy: Copy) -> None:
        if "reply-to" in frame.headers:
            label = labelled(self.scene.schedule.seed, copy, Content({}, b""))
            await talk.write("SEND", {"destination": frame.headers["reply-to"], **label}, frame.body)

    def _time_to_go(self) -> bool:
        if self._stop.is_set():
            return True
        if self._leaves_at is not None and self.scene.clock() >= self._leaves_at:
            self._leaves_at = None
            return True
        return False

    async def _acknowledge(self, talk: Talk, held: Sequence[tuple[Frame, Copy]]) -> None:
        if self._place.ack is Ack.AUTO:
            return
        wanted = [(frame, copy) for frame, copy in held if not self._is_to_refuse(copy)]
        for frame, copy in held:
            if (frame, copy) not in wanted:
                self._refused.add(copy)
                await talk.write("NACK", self._id(frame))
        groups = [held] if self._place.ack is Ack.CLIENT else [[each] for each in wanted]
        for group in groups:
            copies = [copy for _, copy in group]
            answer = await self._ack(talk, group[-1][0])
            answer.add_done_callback(functools.partial(self._settle, copies))

    def _is_to_refuse(self, copy: Copy) -> bool:
        return self.plan.nacks > 0 and copy.number % self.plan.nacks == 0 and copy not in self._refused

    async def _ack(self, talk: Talk, frame: Frame) -> asyncio.Future[None]:
        if not self.plan.transactional:
            return await talk.ask("ACK", self._id(frame))
        name = {"transaction": f"a{next(self._transactions)}"}
        await talk.write("BEGIN", name)
        await talk.write("ACK", {**self._id(frame), **name})
        return await talk.ask("COMMIT", name)

    def _id(self, frame: Frame) -> dict[str, str]:
        if self.plan.version == "1.2":
            return {"id": frame.headers["ack"]}
        return {"message-id": frame.headers["message-id"], "subscription": "s"}

    def _settle(self, copies: Sequence[Copy], done: asyncio.Future[None]) -> None:
        with contextlib.suppress(ConnectionOverError, asyncio.CancelledError):
            done.result()
            for copy in copies:
                event = Settled(self.scene.clock(), self.name, self.connection, self.plan.queue, copy)
                self.scene.recording.add(event)
