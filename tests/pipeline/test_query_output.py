"""`pipeline sql`: one answer in three formats, and mistakes in one sentence."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.lake import Lake
from gateway.pipeline.query_output import print_query
from tests.support.lakes import EPOCH, rows_in

ROWS = [
    {"ts": EPOCH, "seq": 1, "event": "stat", "counters": [("send", 3)], "d": "1970-01-01", "level": "session"},
    {"ts": EPOCH, "seq": 2, "event": "a \x1b[31m,\"b\"", "weight": 0.5, "d": "1970-01-01", "level": "message"},
]  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create("segments")
    lake.write_rows("events", rows_in("events", ROWS), 0)
    return lake


def answer(lake: Lake, query: str, form: str) -> str:
    out = io.StringIO()
    print_query(lake, query, form, out)
    return out.getvalue()


def test_a_table(lake: Lake) -> None:
    assert answer(lake, "select seq, event, weight, counters, ts from events order by seq", "table").splitlines() == [
        "seq  event        weight  counters    ts",
        "---  -----------  ------  ----------  -------------------",
        '1    stat                 {"send":3}  1970-01-01 00:00:00',
        '2    a \N{REPLACEMENT CHARACTER}[31m,"b"  0.5                 1970-01-01 00:00:00',
    ]


def test_csv(lake: Lake) -> None:
    text = answer(lake, "select seq, event, weight, counters from events order by seq", "csv")
    assert list(csv.reader(io.StringIO(text))) == [
        ["seq", "event", "weight", "counters"], ["1", "stat", "", '{"send":3}'], ["2", 'a \x1b[31m,"b"', "0.5", ""],
    ]  # fmt: skip


def test_json_is_an_object_per_line(lake: Lake) -> None:
    lines = answer(lake, "select seq, event, weight, counters, ts from events order by seq", "json").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"seq": 1, "event": "stat", "weight": None, "counters": {"send": 3}, "ts": "1970-01-01T00:00:00Z"},
        {"seq": 2, "event": 'a \x1b[31m,"b"', "weight": 0.5, "counters": None, "ts": "1970-01-01T00:00:00Z"},
    ]


def test_a_long_table_is_cut_and_says_so(lake: Lake) -> None:
    lines = answer(lake, "select * from generate_series(1, 1005)", "table").splitlines()
    assert (len(lines), lines[-2]) == (1003, "1000")
    assert lines[-1].startswith("... more than 1,000 rows: --format csv")
    assert len(answer(lake, "select * from generate_series(1, 1005)", "csv").splitlines()) == 1006


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_table_that_is_not_there_yet_is_empty(lake: Lake, form: str) -> None:
    expected = {"table": ["vhost", "-----"], "csv": ["vhost"], "json": []}[form]
    assert answer(lake, "select vhost from dest_hour", form).splitlines() == expected


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("selects 1", "Expected: an SQL statement, found: selects"),
        ("select * from traffic", "table 'datafusion.public.traffic' not found"),
        ("select sender from events", "No field named sender"),
        ("select 1 / 0 from events", "Divide by zero"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(lake: Lake, query: str, reason: str) -> None:
    with pytest.raises(PipelineError, match="the query failed: ") as caught:
        answer(lake, query, "csv")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["copy (select 1) to 'x.csv'", "create table x as select 1", "drop table events", "delete from events"]
)
def test_a_query_only_reads(lake: Lake, query: str) -> None:
    with pytest.raises(UsageError, match="only reads"):
        print_query(lake, query, "csv", io.StringIO())


def test_the_command_needs_neither_spark_nor_java(lake: Lake) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['py4j'] = None\n"
        "from gateway.cli.command_line import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "pipeline", "sql", "--lake", str(lake), "--format", "csv"]
    done = subprocess.run([*command, "select count(*) n from events"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "n\n2\n", "")
    done = subprocess.run([*command, "select"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("stomp-gateway: the query failed: ")
    assert done.stderr.count("\n") == 1
