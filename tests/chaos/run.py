"""One run: clients work while faults come, then everybody goes, and what happened is checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.chaos.checks import judged, of_streams_made_again, unserved
from tests.chaos.client import ChaosClient, Scene, Talk
from tests.chaos.consumer import Consumer
from tests.chaos.faults import FaultInjector
from tests.chaos.history import Promise
from tests.chaos.messages import content, labelled
from tests.chaos.producer import Producer
from tests.chaos.recording import Began, Confirmed, Copy, Ended, Recording, Sent
from tests.chaos.remains import Inspector, take_what_remains
from tests.chaos.schedule import CLIENT_LOSSES, PROBE, ConsumerPlan, Harm, ProducerPlan, Schedule
from tests.chaos.servers import ChaosGateway, Servers
from tests.chaos.verdict import Finding, Verdict
from tests.support.chaos import ChaosProxy, chaos

_PATIENCE: Final = 40.0
"""Seconds after the last fault in which clients must have done their work."""

_PROBE_EVERY: Final = 0.1

_BAD_LINES: Final = ("internal error", "background task failed", "admin request failed")


@dataclass(frozen=True)
class RunReport:
    """What came of one run."""

    schedule: Schedule
    recording: Recording
    verdict: Verdict
    seconds: float
    log: str
    sessions: str = ""
    """What the gateway said of the sessions that were left, as JSON."""
    is_broken: bool = False
    """Whether the cluster did not become whole again: then nothing more can be said of the run."""

    @property
    def findings(self) -> list[Finding]:
        """What does not hold."""
        return self.verdict.findings

    def count(self, *kinds: type) -> int:
        """How many events there were of some kinds."""
        return sum(isinstance(event, kinds) for event in self.recording.events)


class _Prober(ChaosClient):
    """Sends to every place until every consumer has had one of its messages."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, PROBE.name, PROBE.transport, "1.2")
        self._number = 0
        self._done = False

    @property
    def is_done(self) -> bool:
        return self._done

    async def converse(self, talk: Talk) -> None:
        schedule = self.scene.schedule
        while unserved(schedule, self.scene.recording):
            for place in schedule.places:
                copy, self._number = Copy(self.name, self._number, self.connection), self._number + 1
                found = content(schedule.seed, PROBE, copy.number)
                headers = {"destination": place.destination, "persistent": "true"}
                self.scene.recording.add(Sent(self.scene.clock(), copy, place.name, True, False))
                answer = await talk.ask("SEND", {**headers, **labelled(schedule.seed, copy, found)}, found.body)
                await answer
                self.scene.recording.add(Confirmed(self.scene.clock(), copy))
            await asyncio.sleep(_PROBE_EVERY)
        await self.leave(talk)
        self._done = True


async def perform(
    schedule: Schedule, servers: Servers, inspectors: dict[str, Inspector], promise: Promise
) -> RunReport:
    """Carry out a schedule, and check what came of it.

    Args:
        schedule: of the run.
        servers: of the campaign.
        inspectors: by the node of their gateway; new gateways are added.
        promise: what the gateways are configured to do.
    """
    gateway = await servers.gateway(schedule.variant)
    gateway.forget_log()
    began = time.monotonic()
    recording = Recording()
    async with _proxies(schedule, gateway) as proxies:
        addresses = {name: proxy.address for name, proxy in proxies.items()}
        scene = Scene(
            schedule, recording, addresses, servers.trust, lambda: time.monotonic() - began, servers.is_cluster
        )
        injector = FaultInjector(scene, servers, gateway, proxies)
        found = await _play(scene, injector)
    if injector.broken:
        verdict = Verdict(findings=[f"broken: {injector.broken}"])
        return RunReport(schedule, recording, verdict, time.monotonic() - began, gateway.log(), is_broken=True)
    inspector = inspectors.setdefault(gateway.node, Inspector(servers, gateway))
    found += await inspector.findings()
    sessions = json.dumps(await gateway.admin.json("/api/sessions?page_size=100"), indent=1) if found else ""
    await take_what_remains(servers, scene)
    log = gateway.log()
    verdict = judged(schedule, recording, promise)
    complaints, gateway.complaints = gateway.complaints, []
    verdict.findings += [*found, *complaints, *_bad_lines(log), *touched(log, recording)]
    return RunReport(schedule, recording, verdict, time.monotonic() - began, log, sessions)


@contextlib.asynccontextmanager
async def _proxies(schedule: Schedule, gateway: ChaosGateway) -> AsyncIterator[Mapping[str, ChaosProxy]]:
    """A proxy for each client, so that each can be disturbed alone."""
    async with contextlib.AsyncExitStack() as stack:
        plans: list[ProducerPlan | ConsumerPlan] = [*schedule.producers, *schedule.consumers, PROBE]
        yield {plan.name: await stack.enter_async_context(chaos(gateway.addresses[plan.transport])) for plan in plans}


async def _play(scene: Scene, injector: FaultInjector) -> list[Finding]:
    """Let the clients work. What they cannot finish is a finding."""
    consumers = [Consumer(scene, plan) for plan in scene.schedule.consumers]
    producers = [Producer(scene, plan) for plan in scene.schedule.producers]
    working = {client: asyncio.create_task(client.run()) for client in (*consumers, *producers)}
    try:
        await injector.run()
        if injector.broken:
            return []
        # As docs/reliability.md says.
        again = of_streams_made_again(scene.schedule, scene.recording)
        for consumer in consumers:
            if consumer.name in again:
                consumer.come_back()
        _ = await asyncio.wait([working[each] for each in producers], timeout=_PATIENCE)
        for producer in producers:
            if not working[producer].done():
                # The end of this session is excused, or a finding.
                producer.give_up()
        found = await _finished({each: working[each] for each in producers}, "to have its messages answered")
        prober = _Prober(scene)
        working[prober] = asyncio.create_task(prober.run())
        if await _finished({prober: working[prober]}, ""):
            found += [
                f"not served: {name} gets no message any more" for name in unserved(scene.schedule, scene.recording)
            ]
            found += [] if found else ["hangs: the probe waits for its receipts"]
        for consumer in consumers:
            consumer.stop()
        return found + await _finished({each: working[each] for each in consumers}, "to leave in good order")
    finally:
        for task in working.values():
            _ = task.cancel()
        _ = await asyncio.gather(*working.values(), return_exceptions=True)


async def _finished(working: Mapping[ChaosClient, asyncio.Task[None]], what: str) -> list[Finding]:
    """Wait for clients, and name those that did not finish in time."""
    if not working:
        return []
    done, _ = await asyncio.wait(working.values(), timeout=_PATIENCE)
    for task in done:
        task.result()
    return [f"hangs: {client.name} waits {what}" for client, task in working.items() if task not in done]


def _records(log: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def touched(log: str, recording: Recording) -> Iterable[Finding]:
    """Sessions that ended without a word when a worker was killed, and more than it had."""
    if not recording.faults({Harm.WORKER_KILL}):
        return
    records = _records(log)
    started, ended = (
        {record["session"] for record in records if record.get("event") == event}
        for event in ("session started", "session ended")
    )
    began = {(event.client, event.connection) for event in recording.of(Began)}
    silent = [event for event in recording.of(Ended) if not (event.wanted or event.error)]
    lost = [event for event in silent if (event.client, event.connection) in began]
    cut = len(recording.faults(CLIENT_LOSSES))
    victims = len(started - ended)
    if len(lost) > victims + cut:
        yield f"touched: {len(lost)} sessions were lost, {victims} of killed workers, and {cut} connections were cut"


def _bad_lines(log: str) -> Iterable[Finding]:
    """Errors in the log, each kind once. A worker that was killed is none."""
    records = _records(log)
    bad = [
        record
        for record in records
        if (record.get("level") == "error" and record.get("event") != "worker died")
        or record.get("event") in _BAD_LINES
    ]
    counts = Counter(str(record["event"]) for record in bad)
    return [f"logged: {count} times: {event}" for event, count in counts.items()]
