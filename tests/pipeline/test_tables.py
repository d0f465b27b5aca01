# ruff: noqa: E501 - lines of a journal
"""Made-up journals are ingested, and every table compared row by row with what DuckDB computes from the same files."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from gateway.pipeline.ingest import IngestOptions, ingest
from gateway.pipeline.lake import DataFile, Lake
from gateway.pipeline.maintenance import collect, compact
from gateway.pipeline.progress import Progress
from gateway.pipeline.table_schemas import BATCH_TABLES, COMPUTED_TABLES, HOURLY_TABLES
from gateway.pipeline.tables import refresh
from tests.pipeline.oracle import Oracle
from tests.pipeline.recomputed import assert_right
from tests.support.journals import DAY, SECOND, START, JournalMaker, write_segment
from tests.support.lakes import assert_same, rows_of

pytestmark = pytest.mark.spark

DAYS: Final = ("2026-11-12", "2026-11-19", "2026-11-20", "2026-11-21", "2027-12-26")
MIDNIGHT: Final = START
NOW: Final = START + DAY // 2
WHO: Final = {"vh": "/", "u": "app"}


def sub(t: int, c: int, name: str, **more: object) -> dict[str, object]:
    place = {"d": f"/topic/{name}", "dk": "topic", "s": "1", "sn": f"durable-{name}"}
    return {"e": "sub", "t": t, "c": c, **WHO, **place, "am": "client", "du": True, **more}


def unsub(t: int, c: int, name: str, code: str) -> dict[str, object]:
    return {
        **{key: value for key, value in sub(t, c, name).items() if key not in {"am", "du"}},
        "e": "unsub",
        "x": code,
    }


def delivered(t: int, c: int, name: str, **more: object) -> dict[str, object]:
    return {**{key: value for key, value in sub(t, c, name).items() if key != "du"}, "e": "dlv", "m": 1, "b": 7, **more}


def conn(t: int, c: int, **more: object) -> dict[str, object]:
    return {"e": "conn", "t": t, "c": c, **WHO, "ip": "192.0.2.7", "ver": "1.2", "l": 700, **more}


def end(t: int, c: int, us: int, **more: object) -> dict[str, object]:
    return {"e": "end", "t": t, "c": c, **WHO, "x": "disconnect", "f": {"us": us, "frames_in": 3}, **more}


def write_by_hand(journal: Path) -> None:
    """Cases that random journals do not contain."""
    long_ago = START - 9 * DAY
    write_segment(
        journal,
        [
            conn(long_ago + 5, 1), sub(long_ago + 6, 1, "forgotten"), delivered(long_ago + 7, 1, "forgotten"),
            unsub(long_ago + 8, 1, "forgotten", "end"), sub(long_ago + 9, 1, "killed"), sub(long_ago + 9, 1, "given-up"),
            unsub(long_ago + 10, 1, "given-up", "deleted"),
        ],
        node="hand", boot="00000000000000a1", start=long_ago,
    )  # fmt: skip
    eve = MIDNIGHT - 100 * SECOND
    write_segment(
        journal,
        [
            conn(eve, 1), end(MIDNIGHT + SECOND, 1, 101 * SECOND),  # over midnight
            end(MIDNIGHT + 2 * SECOND, 2, 3 * SECOND),  # without its beginning on the day before
            end(MIDNIGHT + 4 * SECOND, 3, 3 * SECOND),  # without its beginning on the same day
            conn(MIDNIGHT - 1, 4), end(MIDNIGHT + 5 * SECOND, 4, 5 * SECOND - 1),  # clocks differ by a little
            conn(MIDNIGHT - DAY - 3, 5), end(MIDNIGHT + 9, 5, DAY + 12),  # a whole day long
            conn(eve + 1, 6),  # has not ended
            {"e": "conn", "t": eve + 2, "c": 7, "ver": "1.0"}, {"e": "err", "t": eve + 3, "x": "bad-connect"},
            {"e": "send", "t": eve + 4, "c": 7, "d": "/queue/nobody", "dk": "queue", "m": 1, "b": 9, "w": 2.5},
            {"e": "conf", "t": eve + 5, "c": 7, "d": "/queue/nobody", "dk": "queue", "m": 1, "l": 0, "w": 2.5},
            {"e": "use", "t": eve + 6, "c": 7, "x": "receipt", "ver": "1.0"},
            {"e": "use", "t": eve + 7, "c": 7, "x": "receipt", "ver": "1.0"},  # the same session again
            {"e": "use", "t": eve + 7, "c": 7, "x": "from-the-future", "ver": "1.0"},
            {"e": "from-the-future", "t": eve + 8, "c": 7, "x": "x"},
            {"e": "drop", "t": eve + 9, "n": 12}, {"e": "drop", "t": MIDNIGHT + 9, "n": 5},
            {"e": "blk", "t": eve + 9, "c": 7, "vh": "/", "u": "app", "x": "hold", "l": 2**40},
            sub(eve + 10, 6, "here"), sub(eve + 10, 6, "came-and-went"), unsub(eve + 11, 6, "came-and-went", "end"),
            sub(eve + 11, 6, "came-and-went", u=None), unsub(eve + 12, 6, "here", "end"), sub(eve + 12, 6, "here"),
            delivered(MIDNIGHT + 11 * SECOND, 6, "here", r=True, w=4.0),
            {**delivered(MIDNIGHT + 12 * SECOND, 6, "here"), "e": "ack", "n": 2, "l": 31, "w": 4.0},
            {**delivered(MIDNIGHT + 12 * SECOND, 6, "here"), "e": "nack", "n": 2, "x": "discard", "l": 3},
            "no JSON", '{"e": "conn", "t": 1}', '{"e": 5, "t": 1, "q": 99}', "[]",
            '{"e": "conn", "t": 1, "q": 99, "l": "long"}', '{"e": "open", "t": 1, "q": 99, "v": 2}',
            *(
                {"e": event, "t": MIDNIGHT + t, "c": 9, "vh": "/", "u": login, "d": f"/topic/{name}", "dk": "topic",
                 "m": 1, "b": 10, "w": weight}
                for t, (event, login, name, weight) in enumerate((
                    ("send", "eu", "w.a.b", 1), ("send", "us", "w.a.b", 3), ("send", "us", "w.c", 2),
                    ("dlv", "all", "w.#", 6), ("dlv", "some", "*.c", 2), ("dlv", "some", "#.a.*", 4),
                    ("dlv", "none", "w.*.*.*", 1), ("dlv", "exact", "w.a.b", 4), ("send", "us", "nobody", 5),
                ))
            ),
            {"e": "stat", "t": MIDNIGHT + 1, "c": 8, **WHO, "d": "/queue/a", "dk": "queue",
             "cnt": {"dlv": 3, "dlv_bytes": 30, "redelivered": 3}},
        ],
        node="hand", boot="00000000000000a2", start=eve - 10,
    )  # fmt: skip
    ahead = NOW + 400 * DAY  # its clock is wrong
    write_segment(journal, [conn(ahead, 1)], node="ahead", boot="00000000000000a4", start=ahead)
    two_days_ago = START - 2 * DAY
    write_segment(
        journal,
        [sub(two_days_ago, 1, "left"), unsub(two_days_ago + SECOND, 1, "left", "end"), {"e": "close", "t": two_days_ago + 2}],
        node="other", boot="00000000000000a3", start=two_days_ago,
    )  # fmt: skip


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    journal = tmp_path_factory.mktemp("tables") / "journal"
    write_by_hand(journal)
    JournalMaker(journal, seed=1, start=START - 2 * DAY).write(1200, per_segment=400)
    JournalMaker(journal, seed=2, start=START - DAY + 3600 * SECOND).write(600, close=False)  # killed
    JournalMaker(journal, seed=3, node="node2", start=START - 600 * SECOND).write(
        1500, per_segment=500
    )  # over midnight
    JournalMaker(journal, seed=4, start=START + 7200 * SECOND).write(900)
    return journal


def ingest_into(lake: Lake, journal: Path, spark: SparkSession) -> None:
    ingest(IngestOptions([str(journal)], lake.url), Progress(io.StringIO()), spark)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, journal: Path) -> Lake:
    lake = Lake(journal.parent / "a lake {of} é")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.pipeline.tables.time.time", lambda: NOW / SECOND)
        ingest_into(lake, journal, spark)
    return lake


@pytest.fixture(scope="module")
def oracle(journal: Path) -> Iterator[Oracle]:
    oracle = Oracle(journal, now=NOW)
    yield oracle
    oracle.close()


@pytest.mark.parametrize("table", ["events", "rollup_10s", *COMPUTED_TABLES])
def test_a_table_is_what_duckdb_makes_of_the_journal(table: str, lake: Lake, oracle: Oracle) -> None:
    expected = oracle.rows(table)
    assert len(expected) > {"events": 4000, "rollup_10s": 4000}.get(table, 4)
    assert_same(rows_of(lake, table), expected)
    assert {str(row.get("d")) for row in expected} <= {*DAYS, "None"}


def test_waiting_times_are_there(lake: Lake) -> None:
    found = lake.sql("select count(*) n, sum(n) total from latency_hour where event = 'queue' and destination is null")
    assert found["n"][0].as_py() > 5
    assert found["total"][0].as_py() > 1000


def test_flows_say_who_sends_to_whom(lake: Lake) -> None:
    """Wildcards are those of topic exchanges; what a receiver got is divided by what each sender sent."""
    rows = lake.sql("select sender, destination, subscribed, receiver, messages from flows_hour").to_pylist()
    found = {tuple(row.values()) for row in rows if row["sender"] in ("eu", "us") or row["receiver"] == "none"}
    ab, c = "/topic/w.a.b", "/topic/w.c"
    assert found == {
        ("eu", ab, "/topic/w.#", "all", 1.0), ("us", ab, "/topic/w.#", "all", 3.0), ("us", c, "/topic/w.#", "all", 2.0),
        ("us", c, "/topic/*.c", "some", 2.0), ("eu", ab, "/topic/#.a.*", "some", 1.0),
        ("us", ab, "/topic/#.a.*", "some", 3.0), ("eu", ab, ab, "exact", 1.0), ("us", ab, ab, "exact", 3.0),
        ("us", "/topic/nobody", None, None, 5.0), (None, "/topic/w.*.*.*", "/topic/w.*.*.*", "none", 1.0),
    }  # fmt: skip


def test_a_late_segment_replaces_only_its_hours(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other hours' files stay as they are and are not read; those of an earlier release have a day, and are replaced."""
    lake, journal = Lake(tmp_path / "lake"), tmp_path / "journal"
    JournalMaker(journal, seed=1, span=DAY // 4).write(200)
    ingest_into(lake, journal, spark)
    read: list[str] = []
    really: Callable[..., list[str]] = Lake.files

    def files_of(lake: Lake, table: str, *wanted: object) -> list[str]:
        found = really(lake, table, *wanted)
        read.extend(found if table in BATCH_TABLES else ())
        return found

    JournalMaker(journal, seed=4, node="node4", start=START + 12 * 3600 * SECOND, span=600 * SECOND).write(40)
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "files", files_of)
        ingest_into(lake, journal, spark)
    (new,) = lake.sql("select distinct directory from segments where batch = 1")["directory"].to_pylist()
    assert read
    assert {path.split("/data/")[1].split("/")[0] for path in read} == {new}

    before = {table: {*lake.files(table)} for table in HOURLY_TABLES}
    hour = START + 3 * 3600 * SECOND
    JournalMaker(journal, seed=2, node="node2", start=hour + 600 * SECOND, span=600 * SECOND).write(40)
    ingest_into(lake, journal, spark)
    for table, files in before.items():
        assert {path.split("/h=")[1][:2] for path in files - {*lake.files(table)}} <= {"03"}, table
        assert {path.split("/h=")[1][:2] for path in {*lake.files(table)} - files} <= {"03"}, table
        assert len(files) > 1
    assert_right(lake, journal)

    whole = lake.sql("select * from dest_hour")
    delta = lake.table("dest_hour")
    assert delta is not None
    delta.delete()
    write_deltalake(delta, whole, mode="append")
    assert lake.whole_days("dest_hour") == {"2026-11-21"}
    JournalMaker(journal, seed=3, node="node3", start=hour, span=600 * SECOND).write(40)
    ingest_into(lake, journal, spark)
    assert lake.whole_days("dest_hour") == set()
    assert_right(lake, journal)


def test_durable_subscriptions_have_their_verdicts(oracle: Oracle, lake: Lake) -> None:
    rows = lake.sql("select sub_name, verdict from durable_subs where login = 'app'").to_pylist()
    by_name = {row["sub_name"]: row["verdict"] for row in rows}
    assert {name: by_name[f"durable-{name}"] for name in ("here", "left", "killed", "given-up", "forgotten")} == {
        "here": "active", "left": "idle", "killed": "abandoned", "given-up": "deleted", "forgotten": "abandoned",
    }  # fmt: skip


@pytest.fixture
def pieces(tmp_path: Path) -> list[Path]:
    """The segments of two boots whose sessions last from one segment to the next, and over midnight."""
    made = [
        JournalMaker(tmp_path / "journal", seed=5, start=START - DAY // 12, span=DAY // 6).write(250, per_segment=50),
        JournalMaker(tmp_path / "journal", seed=6, node="node2", start=START - 1800 * SECOND).write(
            150, per_segment=50
        ),
    ]
    return [path for each in made for path in each.segments]


def held_back(segments: list[Path]) -> None:
    """Let ingest not see some segments yet."""
    for path in segments:
        path.rename(path.with_name(f".{path.name}"))


def put_back(segments: list[Path]) -> None:
    for path in segments:
        path.with_name(f".{path.name}").rename(path)


def assert_all_same(lake: Lake, journal: Path) -> None:
    oracle = Oracle(journal, now=NOW)
    for table in ("events", *COMPUTED_TABLES):  # rows of the roll-up are partial sums
        assert_same(rows_of(lake, table), oracle.rows(table))
    oracle.close()


def commits_until(last: str) -> Callable[..., bool]:
    """`Lake.commit_files` of a run that is killed when it comes to a table."""
    commit = Lake.commit_files

    def commit_or_end(
        lake: Lake, table: str, files: Sequence[DataFile], batch: int, **replaced: Collection[str]
    ) -> bool:
        if table == last:
            raise KeyboardInterrupt
        return commit(lake, table, files, batch, **replaced)

    return commit_or_end


def test_tables_that_grow_by_pieces_are_those_of_the_whole(
    pieces: list[Path], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pipeline.tables.time.time", lambda: NOW / SECOND)
    lake, journal = Lake(tmp_path / "lake"), tmp_path / "journal"
    late = pieces[1::2]  # so that ends come before their beginnings, too
    held_back(late)
    ingest_into(lake, journal, spark)
    compact(lake, io.StringIO())
    put_back(late)
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit_files", commits_until("unacked_hotspots"))
        with pytest.raises(KeyboardInterrupt):
            ingest_into(lake, journal, spark)
    assert len({lake.last_batch(table) for table in COMPUTED_TABLES}) == 2
    ingest_into(lake, journal, spark)  # finds nothing new, and finishes what the other one has begun
    assert_all_same(lake, journal)
    # A computed table that is gone is computed again, and so are all others.
    shutil.rmtree(tmp_path / "lake/dest_hour")
    assert refresh(spark, lake, now=NOW / SECOND) == 2
    assert_all_same(lake, journal)


def test_of_a_day_whose_events_are_deleted_only_what_can_be_computed_changes(
    pieces: list[Path], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pipeline.tables.time.time", lambda: NOW / SECOND)
    lake, journal = Lake(tmp_path / "lake"), tmp_path / "journal"
    late = [path for path in pieces if path.name.split("-")[-1].startswith("000001")]
    held_back(late)
    ingest_into(lake, journal, spark)
    kept = {table: rows_of(lake, table) for table in ("boots", "features_used", "durable_days")}
    age = time.time() - START / SECOND - 3600
    collect(lake, [journal], 1e6, age / 86_400, io.StringIO())
    assert "2026-11-20" not in lake.days("events")
    put_back(late)
    ingest_into(lake, journal, spark)
    assert "2026-11-20" in lake.days("events")
    oracle = Oracle(journal, now=NOW)
    for table in ("traffic_10s", "dest_hour", "latency_hour", "sessions"):
        assert_same(rows_of(lake, table), oracle.rows(table))
    for table, rows in kept.items():
        found = rows_of(lake, table)
        for day, expected in (("2026-11-20", rows), ("2026-11-21", oracle.rows(table))):
            assert any(row["d"] == day for row in expected)
            assert_same([row for row in found if row["d"] == day], [row for row in expected if row["d"] == day])
    oracle.close()


def test_numbers_as_large_as_a_line_may_have_do_not_stop_anything(spark: SparkSession, tmp_path: Path) -> None:
    most = 1 << 53
    about = {
        "t": START,
        "c": 1,
        **WHO,
        "d": "/queue/a",
        "dk": "queue",
        "s": "1",
        "am": "client",
        "sn": "name",
        "w": 1e6,
    }
    counters = dict.fromkeys(("send", "send_bytes", "conf", "dlv", "dlv_bytes", "redelivered", "ack", "requeue"), most)
    lines: list[dict[str, object]] = [
        *({"e": event, **about, "m": most, "n": most, "l": most, "b": most} for event in ("send", "conf", "dlv", "ack")),
        {"e": "nack", **about, "n": most, "x": "requeue"}, {"e": "drop", "t": START, "n": most}, conn(START, 1, l=most),
        {"e": "stat", **about, "cnt": counters, "h": {"ack:800": most, "ack:0800": most, "conf:800": most}},
        {"e": "stat", **about, "cnt": {"redelivered": most}}, end(START, 1, most),
    ]  # fmt: skip
    write_segment(tmp_path / "journal", lines * 3)
    lake = Lake(tmp_path / "lake")
    ingest_into(lake, tmp_path / "journal", spark)
    assert lake.sql("select sum(bad) bad from segments")["bad"].to_pylist() == [0]
    (row,) = rows_of(lake, "dest_hour")
    assert (row["sent"], row["delivered_bytes"], row["acked"]) == (most, most, most)
    assert rows_of(lake, "durable_subs")
