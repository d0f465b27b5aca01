"""What the admin listener shows of several workers: their sums. Nothing that counts goes down when one dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import structlog

from gateway.admin.gateway_view import LISTINGS, GatewayView, WorkerReport
from gateway.admin.merged_reports import (
    GROWING_OF_HOST,
    PastWorkers,
    merged_families,
    own_families,
    supervisor_process,
)
from gateway.admin.metrics import encoded
from gateway.admin.overview import DESTINATIONS, VIRTUAL_HOSTS, DestinationRow, configured_virtual_hosts, head_of
from gateway.journal.histogram import percentile
from gateway.server.client.trace import FAULT, TracePart, TraceTarget
from gateway.server.paced_work import PeriodicTimer
from gateway.server.process.readiness import MOST_WORKERS_DIE, BrokerState, Readiness
from gateway.server.process.worker_channel import WorkerGoneError
from gateway.server.process.worker_process import Asked, ask
from gateway.server.stats import LoopLag

if TYPE_CHECKING:
    from gateway.admin.listing import Query
    from gateway.server.process.supervisor import Supervisor

log = structlog.get_logger("gateway.admin")

# Seconds: how often workers are asked for their counters when nobody else asks; how long one may take to do something;
# how long a request waits for one that may hang: longer than a probe of a broker takes; and how long one that did
# not answer is not asked again.
_INTERVAL: Final = 5.0
_WITHIN: Final = 10.0
_SOON: Final = 3.0
_PASSED_OVER: Final = 5.0

# And one for its part of a trace: one that hangs delays the lines of the others.
_TRACE_WITHIN: Final = 2.0

# As in `Gateway`.
_LAG_INTERVAL: Final = 1.0

# Of an overview, and of a virtual host: what only grows, and what is of this moment.
_GROWING: Final = ("totals", "errors", "connections_refused")
_PRESENT: Final = (
    "sessions", "connections", "subscriptions", "links", "channels", "unconfirmed", "unacknowledged",
)  # fmt: skip
_PRESENT_OF_HOST: Final = ("sessions", "subscriptions", "links")


@dataclass(slots=True)
class _WorkersTrace:
    """One trace, and the ids of the processes that have a part of it."""

    target: TraceTarget
    until: float
    pids: set[int | None] = field(default_factory=set)


class WorkersTraces:
    """The part of a view that is about traces: those that run in the workers of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.gateway = supervisor
        self._traces: dict[str, _WorkersTrace] = {}

    async def trace_begin(self, name: str, target: TraceTarget, seconds: float) -> int:
        """See `GatewayView`."""
        trace = _WorkersTrace(target, asyncio.get_running_loop().time() + seconds)
        self._traces[name] = trace
        return await self._begin_in(name, trace, {worker.pid for worker in self.gateway.running})

    async def _begin_in(self, name: str, trace: _WorkersTrace, pids: set[int | None]) -> int:
        seconds = trace.until - asyncio.get_running_loop().time()
        workers = [worker for worker in self.gateway.running if worker.pid in pids]
        asked = await ask(workers, "trace_begin", name, trace.target, seconds, within=_TRACE_WITHIN)
        trace.pids |= {pid for pid, clients in asked.answers.items() if clients or trace.target.session is None}
        return sum(asked.answers.values())

    async def trace_take(self, name: str) -> TracePart:
        """See `GatewayView`. Workers that have started since have their part from now on."""
        trace = self._traces[name]
        running = {worker.pid for worker in self.gateway.running}
        trace.pids &= running
        if trace.target.session is None and (new := running - trace.pids):
            await self._begin_in(name, trace, new)
        workers = [worker for worker in self.gateway.running if worker.pid in trace.pids]
        parts: list[TracePart] = list((await ask(workers, "trace_take", name, within=_TRACE_WITHIN)).answers.values())
        ends = [part.end for part in parts if part.end is not None]
        has_gone = not workers and trace.target.session is not None
        is_over = FAULT in ends or has_gone or 0 < len(workers) == len(ends)
        return TracePart(
            sorted((line for part in parts for line in part.lines), key=lambda line: line.time),
            sum(part.frames for part in parts),
            sum(part.left_out for part in parts),
            sum(part.clients for part in parts),
            sum(part.clients_left_out for part in parts),
            max(ends, default="its worker has ended") if is_over else None,
        )

    async def trace_end(self, name: str) -> None:
        """See `GatewayView`."""
        trace = self._traces.pop(name)
        workers = [worker for worker in self.gateway.running if worker.pid in trace.pids]
        await ask(workers, "trace_end", name, within=_TRACE_WITHIN)


class WorkersView(WorkersTraces):
    """The answers of all workers of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        # The last report of each process that ever served, by its id, as long as it lives.
        self._reports: dict[int, WorkerReport] = {}
        self._past = PastWorkers()
        self._lock = asyncio.Lock()
        # The next time that workers are asked for their reports, while the last one is under way.
        self._next: asyncio.Task[list[WorkerReport]] | None = None
        # Until when those that did not answer are passed over, by the id of the process.
        self._silent: dict[int | None, float] = {}
        loop = asyncio.get_running_loop()
        self._lag = LoopLag(_LAG_INTERVAL)
        self._lag.start(loop.time())
        self._ticking = PeriodicTimer(_LAG_INTERVAL, lambda: self._lag.tick(loop.time()))
        self._asking = asyncio.create_task(self._ask_regularly(), name="reports of workers")

    async def _ask_regularly(self) -> None:
        """Until the process ends, so that little is lost with a worker."""
        while not self.gateway.is_stopping:
            await asyncio.sleep(_INTERVAL)
            try:
                _ = await self._present()
            except Exception as error:
                log.error("internal error", exc_info=error)

    async def _present(self) -> list[WorkerReport]:
        """What the workers say now. Those that come while workers are asked share the next time."""
        if self._next is None:
            self._next = asyncio.create_task(self._renewed(), name="reports of workers")
        return await asyncio.shield(self._next)

    async def _renewed(self) -> list[WorkerReport]:
        """What the workers say now. What those said that are gone is in ``_past`` from now on."""
        # One after the other, so that no older report follows a newer one.
        async with self._lock:
            self._next = None
            self._reports |= await self._shown("report")
            alive = {worker.pid for worker in self.gateway.running}
            self._silent = {pid: until for pid, until in self._silent.items() if pid in alive}
            for pid in [pid for pid in self._reports if pid not in alive]:
                self._past.add(self._reports.pop(pid))
            # One that did not answer in time still counts.
            return list(self._reports.values())

    async def _shown(
        self, name: str, *arguments: object, enough: Callable[[Collection[Any]], bool] = lambda _: False
    ) -> dict[int, Any]:
        """The answers to a call that changes nothing, by the id of the process, until those that came are ``enough``.

        Workers that did not answer a moment ago are passed over, unless none is left.
        """
        now, workers = asyncio.get_running_loop().time(), self.gateway.running
        answering = [worker for worker in workers if self._silent.get(worker.pid, now) <= now]
        return self._noted(await ask(answering or workers, name, *arguments, within=_SOON, enough=enough))

    async def _done(
        self, name: str, *arguments: object, enough: Callable[[Collection[Any]], bool] = lambda _: False
    ) -> dict[int, Any]:
        """The same for calls that change something, which all workers get."""
        return self._noted(await ask(self.gateway.running, name, *arguments, within=_WITHIN, enough=enough))

    def _noted(self, asked: Asked) -> dict[int, Any]:
        until = asyncio.get_running_loop().time() + _PASSED_OVER
        self._silent |= dict.fromkeys(asked.silent, until)
        return asked.answers

    def _missing(self, answers: Mapping[int, Any]) -> list[int]:
        """The numbers of the workers that serve clients and have not answered."""
        return [worker.number for worker in self.gateway.running if worker.pid not in answers]

    def _not_found(self, answers: Mapping[int, Any]) -> None:
        """No worker that answered has a session. Raises `WorkerGoneError` if there are others."""
        if self._missing(answers):
            raise WorkerGoneError("A worker does not answer, which may have this session. Try again.")

    async def readiness(self) -> Readiness:
        """See `GatewayView`. The first workers that reach everything are enough."""

        def enough(answers: Collection[Readiness]) -> bool:
            joined = self._joined(answers)
            return joined.is_ready and not joined.down

        return self._joined((await self._shown("readiness", enough=enough)).values())

    def _joined(self, answers: Iterable[Readiness]) -> Readiness:
        """Ready if any worker is, since it serves, unless most of them keep dying."""
        every = list(answers)
        hosts = {
            name: tuple(_broker(states) for states in zip(*(each.virtual_hosts[name] for each in every), strict=False))
            for name in (every[0].virtual_hosts if every else ())
            if all(name in each.virtual_hosts for each in every)
        }
        if self.gateway.is_stopping:
            return Readiness(("draining",), hosts)
        if not every:
            reason = "no worker is running"
            hosts = {
                host.name: tuple(BrokerState(url, reason, 0) for url in host.upstream.urls)
                for host in self.gateway.config.resolved_virtual_hosts()
            }
            return Readiness((reason,), hosts)
        reasons = min((each.reasons for each in every), key=len)
        workers = self.gateway.workers
        dying = sum(worker.keeps_dying for worker in workers)
        if 2 * dying > len(workers):
            return Readiness((MOST_WORKERS_DIE, *reasons), hosts)
        return Readiness(reasons, hosts, (f"{dying} of {len(workers)} workers keep dying",) if dying else ())

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """See `GatewayView`."""
        present = await self._present()
        readiness = self._joined(each.readiness for each in present)
        parts = [each.families for each in present]
        numbers = {worker.pid: worker.number for worker in self.gateway.running}
        by_number = [(numbers[pid], each.families) for pid, each in self._reports.items() if pid in numbers]
        own = own_families(self.gateway, readiness, by_number)
        here = supervisor_process(self.gateway.tls_contexts, self._lag)
        merged = {family.name: family for family in merged_families([*parts, self._past.families, here])}
        return encoded((merged | own).values(), accept)

    async def overview(self) -> dict[str, Any]:
        """See `GatewayView`."""
        present = await self._present()
        readiness = self._joined(each.readiness for each in present)
        views = [each.overview for each in present]
        latencies = sum((each.latencies for each in present), Counter[int]())
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        growing: dict[str, Any] = {
            key: dict(_sum([*(view[key] for view in views), self._past.growing[key]])) for key in _GROWING
        }
        return {
            **head_of(self.gateway, readiness, self.gateway.uptime),
            **growing,
            **{key: sum(view[key] for view in views) for key in _PRESENT},
            "holds": dict(_sum(view["holds"] for view in views)),
            "confirm_latency_seconds": None if p50 is None or p99 is None else {"p50": p50 / 1e6, "p99": p99 / 1e6},
            "workers": len(self.gateway.running),
        }

    async def page(self, name: str, query: Query) -> dict[str, Any]:
        """See `GatewayView`."""
        if name == "destinations":
            return await self._destinations(query)
        if name == "virtual-hosts":
            return await self._virtual_hosts(query)
        if query.page > 1:
            # Workers render all rows up to this page, which is useless if it is beyond the end.
            counts = self._joined_page(name, await self._shown("page", name, query.count), query)
            if counts["total"] <= (query.page - 1) * query.page_size:
                return counts
        return self._joined_page(name, await self._shown("page", name, query.whole), query)

    def _joined_page(self, name: str, answers: Mapping[int, Any], query: Query) -> dict[str, Any]:
        return LISTINGS[name].joined(answers.values(), query, self._missing(answers))

    async def session(self, identity: str) -> dict[str, Any] | None:
        """See `GatewayView`."""
        answers = await self._shown("session", identity, enough=any)
        found: dict[str, Any] | None = next(filter(None, answers.values()), None)
        if found is None:
            self._not_found(answers)
        return found

    async def close_session(self, identity: str, reason: str, operator: str, user: str | None) -> bool:
        """See `GatewayView`."""
        answers = await self._done("close_session", identity, reason, operator, user, enough=any)
        if not any(answers.values()):
            self._not_found(answers)
            return False
        return True

    async def _destinations(self, query: Query) -> dict[str, Any]:
        rows: dict[tuple[str, str, str], DestinationRow] = {}
        answers = await self._shown("destination_rows")
        for answer in answers.values():
            for each in answer:
                row = rows.setdefault((each.virtual_host, each.destination, each.kind), each)
                if row is not each:
                    row.traffic.add(each.traffic)
                    row.subscriptions += each.subscriptions
        return DESTINATIONS.page(rows.values(), query) | {"missing_workers": self._missing(answers)}

    async def fail_back(self, virtual_host: str | None) -> list[dict[str, Any]]:
        """See `GatewayView`."""
        items: dict[str, dict[str, Any]] = {}
        for answer in (await self._done("fail_back", virtual_host)).values():
            for each in answer:
                item = items.setdefault(each["virtual_host"], each)
                if item is not each:
                    item["draining"] += each["draining"]
                    item["reason"] = item["reason"] or each["reason"]
        return list(items.values())

    async def _virtual_hosts(self, query: Query) -> dict[str, Any]:
        present = await self._present()
        readiness = self._joined(each.readiness for each in present)
        rows = []
        for configured in await configured_virtual_hosts(self.gateway.config, readiness):
            same = [row for each in present for row in each.virtual_hosts if row["name"] == configured["name"]]
            past = self._past.hosts.get(configured["name"], {})
            rows.append(
                {
                    **configured,
                    **{key: sum(row[key] for row in same) for key in _PRESENT_OF_HOST},
                    **{key: sum(row[key] for row in same) + past.get(key, 0) for key in GROWING_OF_HOST},
                    "errors": dict(_sum([*(row["errors"] for row in same), past.get("errors", {})])),
                    "holds": dict(_sum([row["holds"] for row in same])),
                }
            )
        return VIRTUAL_HOSTS.page(rows, query)


View = GatewayView | WorkersView


def _broker(states: tuple[BrokerState, ...]) -> BrokerState:
    """A broker as several workers see it: it answers if it answers one of them."""
    best = next((state for state in states if state.is_up), states[0])
    alarm = next((state.alarm for state in states if state.alarm), "")
    return BrokerState(best.broker, best.reason, sum(state.links for state in states), alarm)


def _sum(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total
