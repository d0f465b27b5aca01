"""What workers count together, with processes of their own where that matters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import structlog

from gateway.config.loader import parse
from gateway.config.model import FailedLoginLimits
from gateway.config.virtual_host import VirtualHost
from gateway.server import shared_counts
from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.client.failed_logins import TooManyFailedLoginsError
from gateway.server.client.session_limits import LimitReachedError, SessionLimits
from gateway.server.counts import Recently
from gateway.server.shared_counts import SharedCounts, SharedMemory

WORKERS = 3
_HOST = VirtualHost(name="/")


@dataclass
class Workers:
    """Workers of one supervisor, in one process, on a clock that is set by hand."""

    memory: SharedMemory = field(default_factory=lambda: SharedMemory.made(WORKERS))
    now: float = 100.0

    def counts(self, worker: int) -> SharedCounts:
        # As each has it: a view of its own.
        return SharedCounts(SharedMemory(self.memory.descriptor, WORKERS), worker, lambda: self.now)

    def limits(self, worker: int, failed_logins: FailedLoginLimits | None = None) -> SessionLimits:
        return SessionLimits(lambda: self.now, failed_logins, self.counts(worker))


@pytest.fixture
def workers() -> Workers:
    return Workers()


def virtual_host(limits: str) -> VirtualHost:
    found = parse(f"defaults: {{limits: {limits}}}", environment={}).virtual_host("/")
    assert found is not None
    return found


def test_each_sees_what_all_have(workers: Workers) -> None:
    one, two = workers.counts(0), workers.counts(1)
    for counts in (one, two, two):
        counts.add(("a", "b"))
    assert one.total(("a", "b")) == two.total(("a", "b")) == 3
    assert one.total(("a b",)) == one.total(("b", "a")) == 0
    two.remove(("a", "b"))
    assert workers.counts(2).total(("a", "b")) == 2
    two.remove(("a", "b"))
    one.remove(("a", "b"))
    assert one.total(("a", "b")) == 0
    assert not one._counts
    assert not two._counts


@pytest.mark.parametrize(
    ("config", "scope"),
    [
        ("{sessions: 2}", "The virtual host '/'"),
        ("{user: {sessions: 2}}", "The user 'a'"),
        ("{address: {sessions: 2}}", "The address 10.0.0.1"),
    ],
)
def test_one_session_too_many_is_refused_wherever_the_others_are(workers: Workers, config: str, scope: str) -> None:
    one, two, host = workers.limits(0), workers.limits(1), virtual_host(config)
    first = one.add(host, "a", "10.0.0.1")
    two.add(host, "a", "10.0.0.1")
    for limits in (one, two, workers.limits(2)):
        with pytest.raises(LimitReachedError, match=scope):
            limits.add(host, "a", "10.0.0.1")
    first.release()
    two.add(host, "a", "10.0.0.1")
    with pytest.raises(LimitReachedError):
        one.add(host, "a", "10.0.0.1")


def test_what_a_dead_worker_had_is_given_back_and_no_more(workers: Workers) -> None:
    dead, alive, host = workers.limits(0), workers.limits(1), virtual_host("{sessions: 3}")
    dead.add(host, "a", "10.0.0.1")
    dead.add(host, "b", "10.0.0.2")
    alive.add(host, "c", "10.0.0.3")
    workers.memory.give_back(0)
    assert alive.sessions("/") == 1
    assert alive.sessions("/", login="a") == 0
    successor = workers.limits(0)
    for _ in range(2):
        successor.add(host, "d", "10.0.0.4")
    with pytest.raises(LimitReachedError):
        alive.add(host, "e", "10.0.0.5")


def test_what_is_given_back_begins_and_ends_with_the_largest_pages() -> None:
    """Linux gives back whole pages only, of 4, 16 or 64 KiB: otherwise nothing would be given back."""
    starts = [shared_counts._size(workers) for workers in range(4)]
    assert [start % 65536 for start in starts] == [0] * 4


def test_sessions_of_all_workers_pay_into_one_bucket(workers: Workers) -> None:
    host = virtual_host("{user: {messages_per_second: 10, bytes_per_second: 100, burst: 1}}")
    one, two = (workers.limits(worker).add(host, "a", "10.0.0.1") for worker in (0, 1))
    assert one.charge(10, 0) == 0
    assert two.charge(5, 0) == 0.5
    assert one.charge(0, 0) == 0.5
    # The longer of both waits counts.
    assert one.charge(0, 300) == 2.0
    workers.now += 2
    assert two.charge(0, 0) == 0


def test_a_debt_outlives_the_worker_that_made_it(workers: Workers) -> None:
    host = virtual_host("{user: {messages_per_second: 1, burst: 1}}")
    assert workers.limits(0).add(host, "a", "10.0.0.1").charge(11, 0) == 10.0
    workers.memory.give_back(0)
    assert workers.limits(1).add(host, "a", "10.0.0.1").charge(0, 0) == 10.0


def test_what_is_not_used_any_more_makes_room(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_counts, "_BLOCKS", 1)
    counts = workers.counts(0)
    for number in range(1000):
        counts.add((number,))
        assert counts.total((number,)) == 1
        counts.remove((number,))
    # A time to come keeps its place.
    counts.add(("rate",))
    times, at = counts.cell(("rate",))
    times[at] = workers.now + 5
    counts.remove(("rate",))
    for number in range(63):
        counts.add((number,))
    with structlog.testing.capture_logs() as lines:
        for number in range(63, 70):
            counts.add((number,))
    # What has no room counts in its worker.
    assert [line["event"] for line in lines] == ["shared counts full"]
    assert counts.total((69,)) == 1
    assert workers.counts(1).total((69,)) == 0
    assert workers.counts(1).total((62,)) == 1
    counts.remove((69,))
    assert counts.total((69,)) == 0
    workers.now += 6
    counts.add((70,))
    assert workers.counts(1).total((70,)) == 1


async def _tried(limits: SessionLimits, passcode: str, login: str = "a", host: str = "10.0.0.1") -> str:
    """The outcome of a login whose passcode is wrong, unless it says otherwise."""

    async def ask() -> str:
        if passcode != "right":
            raise UpstreamError(403, "ACCESS_REFUSED")
        return "accepted"

    async def keep_back(seconds: float) -> None:
        delays.append(seconds)

    delays: list[float] = []
    try:
        return await limits.failed_logins.guard(host, _HOST, Credentials(login, passcode), ask, keep_back)
    except TooManyFailedLoginsError as limit:
        return f"wait {limit.seconds}"
    except UpstreamError:
        return f"refused after {delays[0]:g}"


async def test_refused_logins_count_together_whoever_asked_the_broker(workers: Workers) -> None:
    one, two = (workers.limits(worker, FailedLoginLimits(per_login=3, delay_after=2)) for worker in (0, 1))
    outcomes = [await _tried(limits, "wrong") for limits in (one, two, one, two)]
    assert outcomes == ["refused after 0", "refused after 0", "refused after 1", "wait 60"]
    # What a dead worker counted counts on, until the window ends.
    workers.memory.give_back(0)
    assert await _tried(workers.limits(2, FailedLoginLimits(per_login=3)), "wrong") == "wait 60"
    assert await _tried(two, "wrong", host="10.0.0.2") == "refused after 0"
    workers.now += 61
    assert await _tried(two, "wrong") == "refused after 0"


async def test_who_was_accepted_by_one_worker_is_not_limited_by_another(workers: Workers) -> None:
    one, two = (workers.limits(worker, FailedLoginLimits(per_login=2, per_address=3)) for worker in (0, 1))
    assert await _tried(one, "right") == "accepted"
    for number in range(3):
        await _tried(one, "wrong", f"b{number}")
    assert await _tried(two, "right") == "accepted"
    assert await _tried(two, "right", "somebody else") == "wait 60"


async def test_workers_share_the_logins_that_brokers_are_asked_about_at_once(workers: Workers) -> None:
    limits, is_asked = workers.limits(0), asyncio.Event()
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await is_asked.wait()

    async def at_once(_: float) -> None:
        pass

    logins = [
        asyncio.ensure_future(limits.failed_logins.guard("10.0.0.1", _HOST, Credentials("a", str(n)), ask, at_once))
        for n in range(40)
    ]
    while asked < 32 // WORKERS:
        await asyncio.wait(logins, timeout=0)
    await asyncio.wait(logins, timeout=0)
    assert asked == 32 // WORKERS
    is_asked.set()
    await asyncio.gather(*logins)


def test_the_oldest_of_its_block_makes_room_for_what_happens_now(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_counts, "_RECENT_BLOCKS", 1)
    one, two = (
        workers.counts(worker).recent(Recently.REFUSED_OF_ADDRESS, lambda: workers.now, 60) for worker in (0, 1)
    )
    for number in range(64):
        workers.now += 0.01
        assert one.add(number) == 1
    one.renew(0)
    two.add("one more")
    assert [two.count(each) for each in (0, 1, 2, 63, "one more")] == [1, 0, 1, 1, 1]


def test_tables_of_what_happened_lately_are_not_mixed(workers: Workers) -> None:
    refused, accepted = (
        workers.counts(0).recent(what, lambda: workers.now, 60)
        for what in (Recently.REFUSED_OF_LOGIN, Recently.ACCEPTED)
    )
    refused.add("a")
    assert accepted.count("a") == 0
    assert [accepted.add("a"), refused.add("a"), accepted.count("a")] == [1, 2, 1]


_ENTERING = """
import sys
from gateway.server.counts import Recently
from gateway.server.shared_counts import SharedCounts
from gateway.server.shared_counts import SharedMemory
descriptor, workers, worker, times = map(int, sys.argv[1:])
counts = SharedCounts(SharedMemory(descriptor, workers), worker, lambda: 1.0)
print("ready", flush=True)
sys.stdin.readline()
entered = too_many = 0
for _ in range(times):
    with counts.lock:
        has_room = counts.total(("k",)) < 1
        if has_room:
            counts.add(("k",))
    if has_room:
        entered += 1
        too_many += counts.total(("k",)) > 1
        counts.remove(("k",))
print(entered > 0, too_many)
"""


def _process(workers: Workers, worker: int, code: str, *arguments: object) -> subprocess.Popen[str]:
    numbers = workers.memory.descriptor, WORKERS, worker, *arguments
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, numbers)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[workers.memory.descriptor],
    )  # fmt: skip


def test_however_many_come_at_once_no_more_than_allowed_enter(workers: Workers) -> None:
    processes = [_process(workers, worker, _ENTERING, 30_000) for worker in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "True 0\n"
        assert workers.counts(2).total(("k",)) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


_HOLDING = """
import sys
from gateway.server.shared_counts import SharedMemory
memory = SharedMemory(int(sys.argv[1]), int(sys.argv[2]))
with memory.lock:
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_the_lock_of_a_dead_worker_is_free_and_that_of_a_live_one_has_a_name(workers: Workers) -> None:
    process = _process(workers, 0, _HOLDING)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert workers.memory.lock.holder == process.pid
        process.kill()
        process.wait()
        with workers.memory.lock:
            pass
    finally:
        process.kill()
        process.communicate()
