"""How fast the pipeline takes a journal in, and how that grows with cores and with history.

Beside it DuckDB does the same scan and grouping of the same lines.

``python -m tests.bench.ingest --events 2000000``
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import duckdb
import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.spark_session import SparkOptions

P = ParamSpec("P")
T = TypeVar("T")

_START = 1_795_219_200_000_000
_DAY = 86_400_000_000
_PARTS = ("batch", "cores", "history", "journals")
_SEGMENTS = 1000
"""Of the part `journals`."""
_MESSAGE = (
    '{{"e":"send","t":{t},"q":{q},{head},"m":{m},"b":{b},"hn":4,"p":true,"rc":true}}\n'
    '{{"e":"conf","t":{t1},"q":{q1},{head},"m":{m},"l":{l1}}}\n'
    '{{"e":"dlv","t":{t2},"q":{q2},{head},"s":"{s}","am":"client-individual","m":{m},"b":{b}}}\n'
    '{{"e":"ack","t":{t3},"q":{q3},{head},"s":"{s}","am":"client-individual","m":{m},"l":{l2}}}\n'
)


def make_journal(directory: Path, events: int, *, per_segment: int = 340_000, number: int = 0, node: int = 1) -> int:
    """A day of one busy gateway at level message: 400 destinations, 40 users, four events to a message.

    Args:
        directory: of the journal.
        events: how many, about.
        per_segment: lines to a segment.
        number: of the day, from 0; each is a boot of its own.
        node: its number; each has boots of its own.

    Returns:
        How many lines there are.
    """
    chance = random.Random(number + 1_000_003 * (node - 1) + 1)  # noqa: S311 - repeatable is what it must be
    boot = f"{chance.getrandbits(64):016x}"
    start = _START + number * _DAY
    day = directory / f"d={datetime.fromtimestamp(start / 1e6, UTC):%Y-%m-%d}"
    day.mkdir(parents=True)
    messages, step = events // 4, _DAY // max(1, events // 4)
    q, m, segment = 0, 0, 0
    while m < messages:
        t = start + m * step
        lines = [
            f'{{"e":"open","t":{t},"q":{q},"v":1,"node":"node{node}","boot":"{boot}","pid":4711,"impl":"gateway",'
            f'"gw":"0.1.0","seg":{segment}}}\n'
        ]
        q += 1
        for m in range(m + 1, min(messages, m + per_segment // 4) + 1):  # noqa: B020 - counts on
            lines.append(_message(chance, m, q, start + m * step))
            q += 4
        (day / f"gateway-node{node}-{boot}-4711-{segment:06d}.v1.jsonl").write_text("".join(lines))
        segment += 1
    return q


def _message(chance: random.Random, m: int, q: int, t: int) -> str:
    c, d = chance.randrange(200), chance.randrange(400)
    name, kind = (f"/queue/orders.{d}", "queue") if d % 4 else (f"/topic/news.{d}", "topic")
    vhost = "/" if c % 3 else "orders"
    head = f'"c":{c},"vh":"{vhost}","u":"app{c % 40:02d}","d":"{name}","dk":"{kind}"'
    l1, l2 = int(chance.lognormvariate(7, 0.8)), int(chance.lognormvariate(9, 1.2))
    times = {"t": t, "t1": t + l1, "t2": t + l1 + 300, "t3": t + l1 + 300 + l2}
    numbers = {"q": q, "q1": q + 1, "q2": q + 2, "q3": q + 3}
    return _MESSAGE.format(head=head, m=m, b=chance.randrange(64, 4096), s=c % 5, l1=l1, l2=l2, **times, **numbers)


@dataclass(frozen=True)
class Cost:
    """What something took."""

    what: str
    wall: float
    cpu: float
    events: int

    def __str__(self) -> str:
        rate = self.events / self.wall
        return f"{self.what:<52} {self.wall:8.2f} {self.cpu:8.2f} {rate:12,.0f} {self.events / self.cpu:12,.0f}"


def main() -> int:
    """Run the benchmark; the report goes to standard output."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ingest", description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, metavar="N", help="lines of the journal (2000000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="warm batches to choose the best of (3)")
    parser.add_argument("--master", default="local[2]", help="Spark's master (local[2])")
    parser.add_argument("--part", choices=_PARTS, help="measure only this (all)")
    options = parser.parse_args()
    parts = (options.part,) if options.part else _PARTS
    with tempfile.TemporaryDirectory(prefix="stomp-gateway-bench-") as place:
        base = Path(place)
        lines = make_journal(base / "journal", options.events)
        size = sum(path.stat().st_size for path in base.glob("journal/d=*/*"))
        print(f"{lines:,} lines, {size / 1e6:,.0f} MB, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
        print(f"{'':<52} {'wall s':>8} {'CPU s':>8} {'events/s':>12} {'per CPU-s':>12}")
        if "batch" in parts:
            for what in (_WHOLE, _COLD):
                _show([alone(_start_to_end, base, lines, options.master, what)])
            _show(alone(_warm_batches, base, lines, options.rounds, options.master))
            _show([min((timed(_DUCK, lines, lambda: _duckdb(base / "journal")) for _ in range(3)), key=_wall)])
        if "cores" in parts:
            for cores in (1, 2):
                best = alone(_warm_batches, base, lines, options.rounds, f"local[{cores}]")[0]
                _show([replace(best, what=f"one batch, warm, {cores} core{'s'[: cores > 1]}")])
        if "history" in parts:
            for days in (1, 30):
                _show([alone(_next_day, base / f"days{days}", max(40, lines // 100), options.master, days)])
        if "journals" in parts:
            made = max(_SEGMENTS * 4, options.events // 10)
            for count in (1, 10, 100, _SEGMENTS):
                _show([alone(_many_journals, base / f"journals{count}", made, options.master, count)])
    return 0


def alone(work: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Measure in a process of its own: all sessions of a process share one Java, with the options of its start."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *arguments, **more).result()


def _show(costs: list[Cost]) -> None:
    print("\n".join(str(cost) for cost in costs), flush=True)


_COLD = "ingest, start to end, without the other tables"
_WHOLE = "ingest, start to end"
_WARM = "one batch, warm: scan -> events + roll-up on disk"
_EVENTS = "  of it, scan -> events"
_DUCK = "DuckDB: scan -> roll-up in memory"


def _start_to_end(base: Path, lines: int, master: str, what: str) -> Cost:
    from gateway.pipeline import tables  # noqa: PLC0415
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    if what == _COLD:
        tables.refresh = lambda *_, **__: 0
    lake = base / what.replace(" ", "-")
    options = IngestOptions([str(base / "journal")], str(lake), spark=_spark(master))
    return timed(what, lines, lambda: ingest(options, Progress(sys.stderr)))


def _warm_batches(base: Path, lines: int, rounds: int, master: str) -> list[Cost]:
    """The best of some batches, and of their part that makes events."""
    from gateway.pipeline.spark_session import spark_session  # noqa: PLC0415

    with spark_session(_spark(master)) as session:
        warm = [_warm(session, base, lines) for _ in range(rounds)]
    return [min((pair[place] for pair in warm), key=_wall) for place in (0, 1)]


def _next_day(base: Path, lines: int, master: str, days: int) -> Cost:
    """One more day in a lake of some days."""
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415
    from gateway.pipeline.spark_session import spark_session  # noqa: PLC0415

    options = IngestOptions([str(base / "journal")], str(base / "lake"))
    for number in range(days):
        make_journal(base / "journal", lines, number=number)
    with spark_session(_spark(master)) as session:
        ingest(options, Progress(sys.stderr), session)
        made = make_journal(base / "journal", lines, number=days)
        what = f"one more day and its tables, warm, in a lake of {days}"
        return timed(what, made, lambda: ingest(options, Progress(sys.stderr), session))


def _many_journals(base: Path, lines: int, master: str, count: int) -> Cost:
    """The same lines in the same number of small segments, of one gateway or of many."""
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415
    from gateway.pipeline.spark_session import spark_session  # noqa: PLC0415

    make_journal(base / "warm", lines // 10)
    made = sum(
        make_journal(base / f"gateway{node}", lines // count, per_segment=max(4, lines // _SEGMENTS), node=node)
        for node in range(1, count + 1)
    )
    with spark_session(_spark(master)) as session:
        ingest(IngestOptions([str(base / "warm")], str(base / "warm-lake")), Progress(sys.stderr), session)
        journals = [str(base / f"gateway{node}") for node in range(1, count + 1)]
        options = IngestOptions(journals, str(base / "lake"))
        what = f"{_SEGMENTS:,} small segments and their tables, {count:,} journal{'s'[: count != 1]}"
        return timed(what, made, lambda: ingest(options, Progress(sys.stderr), session))


def _spark(master: str) -> SparkOptions:
    from gateway.pipeline.spark_session import SparkOptions  # noqa: PLC0415

    return SparkOptions(master, {"spark.driver.memory": "2g"})


def _wall(cost: Cost) -> float:
    return cost.wall


def _warm(spark: SparkSession, base: Path, lines: int) -> tuple[Cost, Cost]:
    from gateway.pipeline.batches import add_segments, lines_of  # noqa: PLC0415
    from gateway.pipeline.lake import Lake  # noqa: PLC0415
    from gateway.pipeline.spark_tables import computed, write_files  # noqa: PLC0415
    from gateway.pipeline.stored_segments import stored_segments  # noqa: PLC0415

    lake = Lake(base / f"warm{time.monotonic_ns()}")
    segments = list(stored_segments(base / "journal"))

    def make_events() -> None:
        write_files(computed("events", lines=lines_of(spark, segments)), lake, "events", "bench")

    events = timed(_EVENTS, lines, make_events)
    return timed(_WARM, lines, lambda: add_segments(spark, lake, segments)), events


def _duckdb(journal: Path) -> None:
    texts = dict.fromkeys(("e", "vh", "u", "d", "dk", "s", "sn", "am", "x"), "VARCHAR")
    columns = texts | dict.fromkeys(("t", "q", "c", "m", "b", "n", "l"), "BIGINT") | {"r": "BOOLEAN", "w": "DOUBLE"}
    shift = "floor(log2(l))::BIGINT - 4"
    with duckdb.connect() as database:
        database.execute("set threads = 2")
        database.execute(f"""
            create table rollup_10s as
            select t // 10000000 as slot, filename, vh, u, d, dk, sn, am, e,
                   case when e in ('conf', 'nack') then x when e = 'dlv' and r then 'redelivered' end as code,
                   case when l < 16 then l when l >= 16 then (({shift}) << 4) + (l >> ({shift})) end as bucket,
                   sum(coalesce(w, 1) * coalesce(n, 1)) as n, sum(coalesce(w, 1) * b) as bytes
            from read_json('{journal}/d=*/*.jsonl', format = 'newline_delimited', filename = true, columns = {columns})
            group by all
        """)  # noqa: S608 - our own directory


def timed(what: str, lines: int, work: Callable[[], object]) -> Cost:
    before, began = _cpu(), time.monotonic()
    work()
    return Cost(what, time.monotonic() - began, _cpu() - before, lines)


def _cpu() -> float:
    """CPU seconds of this process, of its children that live, and of those that have ended."""
    me = psutil.Process()
    own = me.cpu_times()
    return (
        own.user + own.system + own.children_user + own.children_system + sum(map(_cpu_of, me.children(recursive=True)))
    )


def _cpu_of(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main())
