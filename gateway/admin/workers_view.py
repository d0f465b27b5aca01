"""What the admin listener shows of several workers: their sums. Nothing that counts goes down when one dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from gateway.admin.gateway_view import WorkerReport
from gateway.admin.listing import moment
from gateway.admin.merged_metrics import Families, growing, merged_families, own_families, supervisor_process
from gateway.admin.metrics import encoded
from gateway.admin.overview import DESTINATIONS, LINKS, VIRTUAL_HOST_ROWS, DestinationRow
from gateway.admin.sessions import SESSIONS
from gateway.journal.histogram import percentile
from gateway.server.process.readiness import BrokerState, Readiness

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from gateway.admin.listing import Query
    from gateway.server.process.reload import Reload
    from gateway.server.process.supervisor import Supervisor

# Seconds: how often workers are asked for their counters when nobody else asks; how long one may take to answer; and
# how long monitoring waits for one, which may hang.
_INTERVAL: Final = 5.0
_WITHIN: Final = 10.0
_SOON: Final = 2.0

# Of an overview, and of a virtual host: what only grows, and what is of this moment.
_GROWING: Final = ("totals", "errors")
_PRESENT: Final = (
    "sessions", "connections", "subscriptions", "links", "channels", "unconfirmed", "unacknowledged",
)  # fmt: skip
_GROWING_OF_HOST: Final = ("published", "delivered")
_PRESENT_OF_HOST: Final = ("sessions", "subscriptions", "links")


class WorkersView:
    """The answers of all workers of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        # The last report of each process that ever served, by its id, as long as it lives.
        self._reports: dict[int, WorkerReport] = {}
        self._past = _Past()
        self._lock = asyncio.Lock()
        self._asking = asyncio.create_task(self._ask_regularly(), name="reports of workers")

    async def _ask_regularly(self) -> None:
        """Until the process ends, so that little is lost with a worker."""
        while not self._supervisor.is_stopping:
            await asyncio.sleep(_INTERVAL)
            _ = await self._present()

    async def _present(self) -> list[WorkerReport]:
        """What the workers say now. What those said that are gone is in ``_past`` from now on."""
        # One after the other, so that no older report follows a newer one.
        async with self._lock:
            self._reports |= await self._asked("report", within=_SOON)
            alive = {worker.pid for worker in self._supervisor.running}
            for pid in [pid for pid in self._reports if pid not in alive]:
                self._past.add(self._reports.pop(pid))
            # One that did not answer in time still counts.
            return list(self._reports.values())

    async def _asked(self, name: str, *arguments: object, within: float = _WITHIN) -> dict[int, Any]:
        """The answers of those that give one, by the id of the process."""
        workers = {worker.pid: worker for worker in self._supervisor.running if worker.pid is not None}
        calls = (worker.call(name, *arguments, within=within) for worker in workers.values())
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return {
            pid: answer for pid, answer in zip(workers, answers, strict=True) if not isinstance(answer, BaseException)
        }

    @property
    def reload(self) -> Callable[[str], Awaitable[Reload]] | None:
        """See `View`."""
        return self._supervisor.reload

    async def readiness(self) -> Readiness:
        """See `View`."""
        return self._joined((await self._asked("readiness", within=_SOON)).values())

    def _joined(self, answers: Iterable[Readiness]) -> Readiness:
        """Ready if any worker is: it serves."""
        every = list(answers)
        hosts = {
            name: tuple(_broker(states) for states in zip(*(each.virtual_hosts[name] for each in every), strict=False))
            for name in (every[0].virtual_hosts if every else ())
            if all(name in each.virtual_hosts for each in every)
        }
        if self._supervisor.is_stopping:
            return Readiness(("draining",), hosts)
        if not every:
            return Readiness(("no worker is running",), hosts)
        reasons = min((each.reasons for each in every), key=len)
        return Readiness(reasons, hosts)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """See `View`."""
        present = await self._present()
        readiness = self._joined(each.readiness for each in present)
        parts = [each.families for each in present]
        numbers = {worker.pid: worker.number for worker in self._supervisor.running}
        by_number = [(numbers[pid], each.families) for pid, each in self._reports.items() if pid in numbers]
        own = own_families(self._supervisor, readiness, by_number)
        merged = {
            family.name: family for family in merged_families([*parts, self._past.families, supervisor_process()])
        }
        registry = CollectorRegistry()
        registry.register(_Fixed(list((merged | own).values())))
        return encoded(registry, accept)

    async def overview(self) -> dict[str, Any]:
        """See `View`."""
        present = await self._present()
        readiness = self._joined(each.readiness for each in present)
        supervisor, views = self._supervisor, [each.overview for each in present]
        latencies: Counter[int] = Counter()
        for each in present:
            latencies += each.latencies
        p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
        holds: Counter[str] = Counter()
        for view in views:
            holds.update(view["holds"])
        growing: dict[str, Any] = {
            key: dict(_sum([*(view[key] for view in views), self._past.growing[key]])) for key in _GROWING
        }
        return {
            **(views[0] if views else {}),
            "node": supervisor.node,
            "started_at": moment(supervisor.started_at),
            "uptime_seconds": round(supervisor.uptime / 1e6, 3),
            "ready": readiness.is_ready,
            "reasons": list(readiness.reasons),
            "virtual_hosts_down": readiness.down,
            **growing,
            **{key: sum(view[key] for view in views) for key in _PRESENT},
            "holds": dict(holds),
            "confirm_latency_seconds": None if p50 is None or p99 is None else {"p50": p50 / 1e6, "p99": p99 / 1e6},
            "workers": len(supervisor.running),
        }

    async def sessions(self, query: Query) -> dict[str, Any]:
        """See `View`."""
        return SESSIONS.joined((await self._asked("sessions", query.whole)).values(), query)

    async def session(self, identity: str) -> dict[str, Any] | None:
        """See `View`."""
        return next((found for found in (await self._asked("session", identity)).values() if found is not None), None)

    async def close_session(self, identity: str, reason: str, operator: str, user: str | None) -> bool:
        """See `View`."""
        return any((await self._asked("close_session", identity, reason, operator, user)).values())

    async def destinations(self, query: Query) -> dict[str, Any]:
        """See `View`."""
        rows: dict[tuple[str, str, str], DestinationRow] = {}
        for answer in (await self._asked("destination_rows")).values():
            for each in answer:
                row = rows.setdefault((each.virtual_host, each.destination, each.kind), each)
                if row is not each:
                    row.traffic.add(each.traffic)
                    row.subscriptions += each.subscriptions
        return DESTINATIONS.page(rows.values(), query)

    async def links(self, query: Query) -> dict[str, Any]:
        """See `View`."""
        return LINKS.joined((await self._asked("links", query.whole)).values(), query)

    async def fail_back(self, virtual_host: str | None) -> list[dict[str, Any]]:
        """See `View`."""
        items: dict[str, dict[str, Any]] = {}
        for answer in (await self._asked("fail_back", virtual_host)).values():
            for each in answer:
                item = items.setdefault(each["virtual_host"], each)
                if item is not each:
                    item["draining"] += each["draining"]
                    item["reason"] = item["reason"] or each["reason"]
        return list(items.values())

    async def virtual_hosts(self, query: Query) -> dict[str, Any]:
        """See `View`."""
        present = await self._present()
        readiness = self._joined(each.readiness for each in present)
        names = [row["name"] for row in (present[0].virtual_hosts if present else ())]
        rows = []
        for name in names:
            same = [row for each in present for row in each.virtual_hosts if row["name"] == name]
            past = self._past.hosts.get(name, {})
            states = readiness.virtual_hosts.get(name, ())
            brokers = [
                {**shown, "up": state.is_up, "reason": state.reason or None, "links": state.links}
                for shown, state in zip(same[0]["brokers"], states, strict=False)
            ]
            rows.append(
                {
                    **same[0],
                    "up": any(state.is_up for state in states),
                    "brokers": brokers,
                    **{key: sum(row[key] for row in same) for key in _PRESENT_OF_HOST},
                    **{key: sum(row[key] for row in same) + past.get(key, 0) for key in _GROWING_OF_HOST},
                    "errors": dict(_sum([*(row["errors"] for row in same), past.get("errors", {})])),
                    "holds": dict(_sum([row["holds"] for row in same])),
                }
            )
        return VIRTUAL_HOST_ROWS.page(rows, query)


class _Past:
    """What workers counted that are gone, as of their last reports."""

    def __init__(self) -> None:
        self.families: Families = []
        self.growing: dict[str, Counter[str]] = {key: Counter() for key in _GROWING}
        self.hosts: dict[str, dict[str, Any]] = {}

    def add(self, report: WorkerReport) -> None:
        """A worker is gone, whose last report this was."""
        self.families = merged_families([self.families, growing(report.families)])
        for key, counts in self.growing.items():
            counts.update(report.overview[key])
        for row in report.virtual_hosts:
            host = self.hosts.setdefault(row["name"], {"errors": Counter()})
            for key in _GROWING_OF_HOST:
                host[key] = host.get(key, 0) + row[key]
            host["errors"].update(row["errors"])


class _Fixed(Collector):
    """Families that are there."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """No metric, as `GatewayCollector`."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._families


def _broker(states: tuple[BrokerState, ...]) -> BrokerState:
    """A broker as several workers see it: it answers if it answers one of them."""
    best = next((state for state in states if state.is_up), states[0])
    return BrokerState(best.broker, best.reason, sum(state.links for state in states))


def _sum(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total
