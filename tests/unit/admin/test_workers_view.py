"""What the admin listener shows of several workers while some of them hang, or none runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from gateway.admin import workers_view
from gateway.admin.admin_listener import AdminListener
from gateway.admin.gateway_view import WorkerReport
from gateway.admin.listing import Query
from gateway.admin.terminal_top import TopSample, screen_lines
from gateway.admin.workers_view import WorkersView
from gateway.config.loader import parse
from gateway.server.client.trace import FAULT, TraceLine, TracePart, TraceTarget
from gateway.server.process.readiness import Readiness
from gateway.server.process.supervisor import Supervisor
from gateway.server.process.worker_channel import WorkerGoneError
from gateway.server.process.worker_process import WorkerProcess
from tests.support.admin import AdminClient, samples_of
from tests.support.certificates import Authority
from tests.support.deadline import within

_CONFIG = """
listeners: [{tcp: '127.0.0.1:0'}]
workers: 2
virtual_hosts: {/: {upstream: {urls: ['amqp://localhost:1']}}}
defaults: {journal: {level: 'off'}}
"""


class _Worker:
    """Gives these answers; one that ``hangs`` gives none, until its time is over."""

    is_running = True
    keeps_dying = False

    def __init__(self, pid: int, *, hangs: bool = False, **answers: object) -> None:
        self.pid = self.number = pid
        self.hangs = asyncio.Event()
        if not hangs:
            self.hangs.set()
        self.answers = answers
        self.calls: Counter[str] = Counter()
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.arguments: list[tuple[object, ...]] = []

    async def call(self, name: str, *arguments: object, within: float) -> Any:  # noqa: ANN401 - any answer
        self.calls[name] += 1
        self.asked.put_nowait(name)
        self.arguments.append(arguments)
        try:
            async with asyncio.timeout(within):
                await self.hangs.wait()
        except TimeoutError:
            raise WorkerGoneError("the worker does not answer") from None
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def _view(*workers: _Worker, more: str = "") -> AsyncIterator[WorkersView]:
    supervisor = Supervisor(parse(_CONFIG + more, environment={}))
    supervisor.workers = [cast("WorkerProcess", worker) for worker in workers]
    _kept = supervisor.tls_contexts.prepare([supervisor.config.admin.tls])
    before = asyncio.all_tasks()
    view = WorkersView(supervisor)
    try:
        async with within():
            yield view
    finally:
        view._ticking.stop()
        for task in (left := asyncio.all_tasks() - before):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def test_a_gateway_most_of_whose_workers_keep_dying_is_not_ready() -> None:
    workers = [_Worker(number, readiness=Readiness()) for number in range(3)]
    async with _view(*workers) as view:
        workers[0].keeps_dying = True
        readiness = await view.readiness()
        assert (readiness.is_ready, readiness.warnings) == (True, ("1 of 3 workers keep dying",))
        workers[1].keeps_dying = True
        readiness = await view.readiness()
        assert (readiness.reasons, readiness.warnings) == (("most workers keep dying",), ())


async def test_readiness_does_not_wait_for_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_view, "_SOON", 3600)
    async with _view(_Worker(1, hangs=True), _Worker(2, readiness=Readiness())) as view:
        assert (await view.readiness()).is_ready


async def test_those_that_ask_while_a_worker_hangs_wait_for_it_together() -> None:
    hanging = _Worker(1, hangs=True)
    async with _view(hanging) as view:
        requests = [asyncio.create_task(view.overview()) for _ in range(6)]
        await hanging.asked.get()
        requests += [asyncio.create_task(view.overview()) for _ in range(6)]
        hanging.answers["report"] = _report()
        hanging.hangs.set()
        overviews = await asyncio.gather(*requests)
        assert {each["sessions"] for each in overviews} == {1}
        assert {each["connections_refused"]["network"] for each in overviews} == {2}
        assert hanging.calls["report"] == 2


def _report() -> WorkerReport:
    numbers = dict.fromkeys(("sessions", "connections", "subscriptions", "links", "channels"), 1)
    overview = {**numbers, "unconfirmed": 0, "unacknowledged": 0, "holds": {}, "totals": {}, "errors": {}}
    overview["connections_refused"] = {"network": 2}
    return WorkerReport(Readiness(), [], overview, [], Counter())


async def test_a_worker_that_did_not_answer_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_view, "_SOON", 0.01)
    monkeypatch.setattr(workers_view, "_PASSED_OVER", 3600)
    empty: dict[str, Any] = {"items": [], "total": 0}
    hanging, other = _Worker(1, hangs=True), _Worker(2, page=empty)
    async with _view(hanging, other) as view:
        for _ in range(3):
            await view.page("links", Query({}, "name", descending=False, page=1, page_size=10))
        assert (hanging.calls["page"], other.calls["page"]) == (1, 3)
        # It may have the session.
        with pytest.raises(WorkerGoneError):
            await view.session("s")


async def test_a_list_names_the_workers_whose_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_view, "_SOON", 0.01)
    empty: dict[str, Any] = {"items": [], "total": 0}
    hanging, other = _Worker(1, hangs=True), _Worker(2, page=empty, destination_rows=[])
    first, second = (Query({}, "virtual_host", descending=False, page=page, page_size=10) for page in (1, 2))
    async with _view(hanging, other) as view:
        for name in ("sessions", "links", "destinations"):
            for query in (first, second):
                assert (await view.page(name, query))["missing_workers"] == [1]
        hanging.answers |= {"page": empty, "destination_rows": []}
        hanging.hangs.set()
        view._silent.clear()
        for name in ("sessions", "links", "destinations"):
            assert (await view.page(name, first))["missing_workers"] == []


async def test_a_session_is_not_missing_while_its_worker_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, other = _Worker(1, hangs=True), _Worker(2, close_session=False)
    async with _view(hanging, other) as view:
        monkeypatch.setattr(workers_view, "_WITHIN", 0.01)
        with pytest.raises(WorkerGoneError, match="may have this session"):
            await view.close_session("s", "", "me", None)
        # One that another worker has is closed at once.
        monkeypatch.setattr(workers_view, "_WITHIN", 3600)
        other.answers["close_session"] = True
        assert await view.close_session("s", "", "me", None)


def _part(*times: int, frames: int = 0, left_out: int = 0, end: str | None = None) -> TracePart:
    return TracePart([TraceLine(time, b"%d" % time, is_frame=True) for time in times], frames, left_out, 1, 0, end)


async def test_a_trace_has_the_lines_of_all_workers_in_order_and_of_those_that_come() -> None:
    first = _Worker(1, trace_begin=1, trace_take=_part(1, 4, frames=2))
    second = _Worker(2, trace_begin=2, trace_take=_part(2, 3, frames=2, left_out=5))
    late = _Worker(3, trace_begin=0, trace_take=_part(5, frames=1))
    async with _view(first, second) as view:
        assert await view.trace_begin("a", TraceTarget(login="billing"), 60) == 3
        part = await view.trace_take("a")
        assert [line.time for line in part.lines] == [1, 2, 3, 4]
        assert (part.frames, part.left_out, part.clients, part.end) == (4, 5, 2, None)
        # One has died, and another one has begun.
        view.gateway.workers = [cast("WorkerProcess", worker) for worker in (second, late)]
        part = await view.trace_take("a")
        assert [line.time for line in part.lines] == [2, 3, 5]
        assert late.arguments[0][:2] == ("a", TraceTarget(login="billing"))
        second.answers["trace_take"] = _part(end="its time was over")
        assert (await view.trace_take("a")).end is None
        late.answers["trace_take"] = _part(end="its time was over")
        assert (await view.trace_take("a")).end == "its time was over"
        await view.trace_end("a")
        assert second.calls["trace_end"] == late.calls["trace_end"] == 1


async def test_a_trace_of_a_session_asks_its_worker_alone_and_ends_with_it() -> None:
    first, second = _Worker(1, trace_begin=0), _Worker(2, trace_begin=1, trace_take=_part(1))
    async with _view(first, second) as view:
        assert await view.trace_begin("a", TraceTarget(session="session-a"), 60) == 1
        assert (await view.trace_take("a")).end is None
        assert first.calls["trace_take"] == 0
        view.gateway.workers = [cast("WorkerProcess", first)]
        assert (await view.trace_take("a")).end == "its worker has ended"
        await view.trace_end("a")


async def test_a_fault_in_one_worker_ends_a_trace() -> None:
    first, second = (
        _Worker(1, trace_begin=1, trace_take=_part(1)),
        _Worker(2, trace_begin=1, trace_take=_part(end=FAULT)),
    )
    async with _view(first, second) as view:
        await view.trace_begin("a", TraceTarget(login="billing"), 60)
        assert (await view.trace_take("a")).end == FAULT
        await view.trace_end("a")
        assert first.calls["trace_end"] == 1


async def test_a_page_behind_the_end_is_not_asked_for() -> None:
    worker = _Worker(1, page={"items": [], "total": 20})
    async with _view(worker) as view:
        page = await view.page("links", Query({}, "name", descending=False, page=3, page_size=10))
        assert (page["total"], page["page"], page["items"]) == (20, 3, [])
        ((_, query),) = worker.arguments
        assert cast("Query", query).page_size == 0


async def test_while_no_worker_runs_everything_is_there_and_down() -> None:
    async with _view() as view:
        overview = await view.overview()
        assert overview["reasons"] == ["no worker is running"]
        assert overview["virtual_hosts_down"] == ["/"]
        before, now = (TopSample(seconds, overview, sessions={}, is_complete=True) for seconds in (0.0, 1.0))
        assert screen_lines(before, now, 10, 100)
        (host,) = (await view.page("virtual-hosts", Query({}, "name", descending=False, page=1, page_size=10)))["items"]
        assert (host["name"], host["up"], host["published"], host["sessions"]) == ("/", False, 0, 0)
        (broker,) = host["brokers"]
        assert broker["reason"] == "no worker is running"


async def test_counters_are_kept_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_view, "_INTERVAL", 0)
    async with _view(worker := _Worker(1, report=ValueError())):
        for _ in range(3):
            await worker.asked.get()


async def test_the_supervisors_own_certificates_and_event_loop_are_watched(tmp_path: Path) -> None:
    certificate, key = Authority.make(tmp_path, "authority").sign(tmp_path, "server")
    async with _view(more=f"admin: {{tls: {{cert_file: {certificate}, key_file: {key}}}}}") as view:
        text, _ = await view.metrics("")
        names = {name for name, _ in samples_of(text.decode())}
        for name in ("certificate_expiry_timestamp_seconds", "certificate_stale", "event_loop_lag_seconds"):
            assert f"stomp_gateway_{name}" in names


async def test_whoever_has_no_user_learns_that_no_worker_runs() -> None:
    config = parse(_CONFIG + "admin: {address: '127.0.0.1:0', users: [{login: a, passcode: secret}]}", environment={})
    async with _view() as view:
        listener = AdminListener(config.admin, lambda _: view)
        with structlog.testing.capture_logs() as lines:
            await listener.start(Supervisor(config))
        try:
            (url,) = [line["url"] for line in lines if line["event"] == "admin listening"]
            address = "127.0.0.1", int(url.strip("/").rpartition(":")[2])
            answer = await AdminClient(address).ask("/readyz?virtual_host=/")
            assert (answer.status, answer.json["reasons"]) == (503, ["no worker is running"])
        finally:
            await listener.stop()
