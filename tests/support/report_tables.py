"""Tables of a lake made up for the report: the same recipe gives the same rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import cos, log, pi

import pyarrow as pa
from deltalake import write_deltalake

from gateway.journal.histogram import bucket_of, percentile
from gateway.journal.schema import FEATURES
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS, partitions_of, schema_of

START = datetime(2026, 11, 21, 10, tzinfo=UTC)
"""When made-up traffic begins."""

Row = dict[str, object]


@dataclass
class Rows:
    """Rows of tables, before they are in a lake."""

    lake: Lake
    by_table: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def add(self, table: str, at: datetime, **row: object) -> None:
        """Add a row to a day of a table; key columns have defaults."""
        usual = {"impl": "gateway", "vhost": "/"} if "impl string" in COLUMNS[table] else {"vhost": "/"}
        self.by_table[table].append({**usual, "d": f"{at:%Y-%m-%d}", **row})

    def event(self, at: datetime, event: str, n: float = 1.0, **more: object) -> None:
        """Add to traffic_10s; ``latency_us`` becomes a bucket."""
        latency = more.pop("latency_us", None)
        bucket = bucket_of(latency) if isinstance(latency, int) else None
        self.add("traffic_10s", at, ts10=at, event=event, bucket=bucket, n=n, **{"bytes": 0.0, **more})

    def boot(self, first: datetime, last: datetime, **more: object) -> None:
        """Add a boot; by default it closed its journal and dropped nothing."""
        usual: Row = {"node": "gw1", "boot": "00000000000000a1", "gateway_version": "0.2.0", "closed": True,
                      "lines": 1000, "dropped": 0}  # fmt: skip
        self.add("boots", first, first_ts=first, last_ts=last, **{**usual, **more})

    def durable(self, name: str, verdict: str, idle: float, **more: object) -> None:
        """Add a durable subscription that was left so many days before ``START``."""
        usual: Row = {
            "login": "billing", "destination": "/topic/prices", "first_seen": START - timedelta(days=30),
            "last_connected": START - timedelta(days=idle), "deliveries": 500, "acks": 480, "connected": idle == 0,
            "days_idle": idle, "verdict": verdict,
        }  # fmt: skip
        self.add("durable_subs", START, sub_name=name, **{**usual, **more})

    def write(self) -> Lake:
        """Add the rows to the tables."""
        self.lake.create("segments")
        for table, rows in self.by_table.items():
            arrow = pa.Table.from_pylist(rows, schema=schema_of(table))
            write_deltalake(self.lake.table_url(table), arrow, mode="append", partition_by=partitions_of(table))
        self.by_table.clear()
        return self.lake


@dataclass(frozen=True)
class Recipe:
    """How much to make up."""

    length: timedelta
    step: timedelta = timedelta(seconds=10)
    per_second: float = 40.0
    destinations: int = 25
    users: int = 8
    sessions: int = 120
    seed: int = 7


DEMO = Recipe(timedelta(minutes=3), per_second=60, destinations=12, users=4, sessions=30)
AN_HOUR = Recipe(timedelta(hours=1))
A_DAY = Recipe(timedelta(days=1), step=timedelta(minutes=2), sessions=900)
A_MONTH = Recipe(timedelta(days=30), step=timedelta(hours=2), destinations=40, users=24, sessions=2000)
A_POINT = Recipe(timedelta(seconds=10), per_second=2, destinations=1, users=1, sessions=1)

USERS = ("shop", "billing", "warehouse", "telemetry", "søren", "reports", "gateway-eu", "audit")
CODES = ("not_found", "access_refused", "processing-error", "bad-connect", "heart-beat", "precondition_failed",
         "bad-header", "slow-consumer", "login-timeout")  # fmt: skip
KINDS = (("queue", "/queue/"), ("topic", "/topic/"), ("exchange", "/exchange/events/"), ("amqq", "/amq/queue/"))
NAMES = ("orders.created", "orders.paid", "invoices", "prices", "stock.eu-west", "audit", "mail.outgoing", "picks",
         "telemetry.vehicles.position", "alarms", "tickets", "returns.accepted-by-warehouse-and-refunded")  # fmt: skip


class World:
    """Makes up all tables by a recipe."""

    def __init__(self, lake: Lake, recipe: Recipe) -> None:
        self._rows = Rows(lake)
        self._recipe = recipe
        self._random = random.Random(recipe.seed)  # noqa: S311 - repeatable is what it must be
        self._hours: dict[datetime, float] = defaultdict(float)
        self._end = START + recipe.length

    def write(self) -> Lake:
        """Write all tables."""
        at = START
        while at < self._end:
            self._moment(at)
            at += self._recipe.step
        for hour, amount in self._hours.items():
            self._hour(hour, amount)
        self._sessions()
        self._hotspots()
        self._features()
        self._durables()
        self._rows.boot(START, self._end, closed=False, lines=48_211)
        self._rows.boot(START, self._end, node="gw2", boot="00000000000000b2", lines=39_950)
        return self._rows.write()

    def _load(self, at: datetime) -> float:
        """Messages per second: more by day than by night, with a burst now and then."""
        by_day = 1 - 0.7 * cos(2 * pi * (at.hour + at.minute / 60 - 2) / 24)
        burst = 2.5 if self._random.random() < 0.02 else 1.0
        return self._recipe.per_second * by_day * burst * self._random.uniform(0.85, 1.15)

    def _moment(self, at: datetime) -> None:
        chance, rows = self._random, self._rows
        sent = round(self._load(at) * self._recipe.step.total_seconds())
        slow = 6 if 0.6 < (at - START) / self._recipe.length < 0.66 else 1
        rows.event(at, "send", sent, bytes=sent * 640.0)
        delivered = round(sent * chance.uniform(1.25, 1.4))
        rows.event(at, "deliver", delivered * 0.97, bytes=delivered * 600.0)
        rows.event(at, "deliver", delivered * 0.03, code="redelivered")
        for event, amount, usual, spread in (("confirm", sent, 2600, 0.5), ("ack", delivered * 0.8, 21_000, 1.1)):
            parts: dict[int, int] = defaultdict(int)
            for _ in range(24):
                parts[bucket_of(int(chance.lognormvariate(log(usual * slow), spread)))] += 1
            for bucket, times in parts.items():
                n = amount * times / 24
                rows.add("traffic_10s", at, ts10=at, event=event, bucket=bucket, n=n, bytes=0.0)
        self._troubles(at, slow)
        self._hours[at.replace(minute=0, second=0)] += sent

    def _troubles(self, at: datetime, slow: int) -> None:
        chance, rows = self._random, self._rows
        if chance.random() < 0.12 * slow:
            code = CODES[min(int(chance.expovariate(0.6)), 4 if self._recipe.destinations < 20 else len(CODES) - 1)]
            rows.event(at, "error", chance.randrange(1, 4) * slow, code=code)
        if chance.random() < 0.05 * slow:
            reason = chance.choice(("confirm-window", "confirm-window", "client-slow", "broker-blocked"))
            rows.event(
                at, "blocked", chance.randrange(1, 5), code=reason, latency_us=int(chance.lognormvariate(12, 1.5))
            )

    def destination(self, number: int) -> tuple[str, str]:
        """The name and kind of a destination."""
        kind, prefix = KINDS[number % len(KINDS)]
        suffix = f".{number // len(NAMES)}" if number >= len(NAMES) else ""
        return f"{prefix}{NAMES[number % len(NAMES)]}{suffix}", kind

    def _hour(self, hour: datetime, amount: float) -> None:
        rows, many = self._rows, self._recipe.destinations
        whole = sum(1 / (rank + 1) ** 1.2 for rank in range(many))
        for rank in range(many):
            name, kind = self.destination(rank)
            sent = round(amount / (rank + 1) ** 1.2 / whole)
            delivered = round(sent * (2.6 if kind == "topic" else 0.95))
            again = round(delivered * (0.11 if rank == 3 else 0.004))
            rows.add("dest_hour", hour, hour=hour, destination=name, dest_kind=kind, sent=sent, sent_bytes=sent * 640,
                     confirmed=sent, rejected=3 if rank == 5 else 0, delivered=delivered,
                     delivered_bytes=delivered * 600, redelivered=again, acked=round(delivered * 0.8), requeued=again,
                     discarded=0)  # fmt: skip
            self._of_destination(hour, name, rank, delivered, again)
        for number in range(4):
            rows.add("errors_hour", hour, hour=hour, login=USERS[number] if number else None, code=CODES[number], n=4)

    def _of_destination(self, hour: datetime, name: str, rank: int, delivered: int, again: int) -> None:
        user = USERS[rank % min(self._recipe.users, len(USERS))]
        if again:
            self._rows.add("redeliveries_hour", hour, hour=hour, login=user, destination=name, delivered=delivered,
                           redelivered=again, redelivered_pct=100 * again / delivered)  # fmt: skip
        counts = {bucket_of(int(self._random.lognormvariate(8 + rank % 5, 0.6))): 5.0 for _ in range(6)}
        p50, p95, p99 = (percentile(counts, part) for part in (0.5, 0.95, 0.99))
        self._rows.add("latency_hour", hour, hour=hour, destination=name, event="ack", n=delivered, p50_us=p50,
                       p95_us=p95, p99_us=p99, p999_us=p99, max_us=p99)  # fmt: skip

    def _sessions(self) -> None:
        chance = self._random
        for number in range(self._recipe.sessions):
            started = START + self._recipe.length * chance.random()
            lasted = timedelta(seconds=chance.expovariate(1 / 900))
            ended = started + lasted if started + lasted < self._end else None
            self._rows.add("sessions", started, node="gw1", boot="00000000000000a1", session=number,
                           login=USERS[number % 4], started=started, ended=ended)  # fmt: skip

    def _hotspots(self) -> None:
        for rank in range(min(8, self._recipe.destinations)):
            deliveries = 4000 // (rank + 1)
            acked = round(deliveries * (0.72 if rank == 2 else 0.995))
            self._rows.add("unacked_hotspots", START, login=USERS[rank % 4], destination=self.destination(rank)[0],
                           deliveries=deliveries, acked=acked, nacked=0, unacked=deliveries - acked, unacked_pct=1.0,
                           p99_ack_us=90_000, redelivered_pct=0.4)  # fmt: skip

    def _features(self) -> None:
        for number in range(self._recipe.users):
            user = USERS[number % len(USERS)] + (f"-{number}" if number >= len(USERS) else "")
            for place, feature in enumerate(FEATURES):
                if self._random.random() < 0.4 and place % 9:
                    self._rows.add("features_used", START, login=user, version=("1.2", "1.1", "1.0")[number % 3],
                                   feature=feature, sessions=self._random.randrange(1, 400),
                                   first_seen=START, last_seen=self._end)  # fmt: skip

    def _durables(self) -> None:
        ages: Sequence[tuple[str, str, float]] = (
            ("mobile-app-2021", "abandoned", 12.3), ("price-board-hall-7", "abandoned", 27.0),
            ("ledger", "active", 0.0),
            ("weekly-export", "idle", 3.2), ("stock-mirror", "active", 0.0), ("trial-run", "deleted", 5.0),
        )  # fmt: skip
        for name, verdict, idle in ages:
            self._rows.durable(name, verdict, idle, last_delivery=START - timedelta(days=idle))


def made_up(lake: Lake, recipe: Recipe) -> Lake:
    """Write all tables by a recipe."""
    return World(lake, recipe).write()
