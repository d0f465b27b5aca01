"""`pipeline sql`: one answer in three formats, and mistakes in one sentence."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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
        "seq  event           weight  counters    ts",
        "---  --------------  ------  ----------  -------------------",
        '1    stat                    {"send":3}  1970-01-01 00:00:00',
        r'2    a \x1b[31m,"b"  0.5                 1970-01-01 00:00:00',
    ]


def test_a_plan_has_its_lines_and_no_client_can_make_up_rows(lake: Lake) -> None:
    lines = answer(lake, "explain select seq from events where seq > 1", "table").splitlines()
    assert lines[0].split() == ["plan_type", "plan"]
    at = lines[0].index("plan", 5)
    logical = lines.index(next(line for line in lines if line.startswith("logical_plan")))
    assert lines[logical][at:].startswith("Projection: events.seq") or lines[logical][at:].startswith("Filter: ")
    assert lines[logical + 1][:at].isspace()
    assert "TableScan: events" in "".join(lines)
    assert "\\" not in "".join(lines)

    lake.write_rows("events", rows_in("events", [{**ROWS[0], "event": "x\n9    forged"}]), 1)
    table = answer(lake, "select seq, event from events where event like 'x%'", "table")
    assert table.splitlines()[2:] == [r"1    x\n9    forged"]


def test_messages_are_joined_with_traffic_on_the_page_and_in_the_notebook(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = Path(__file__).parents[2] / "docs"
    about = {"vhost": "/", "destination": "/topic/orders", "d": "1970-01-01"}
    body = {"body": b'{"total": 2.5}', "body_bytes": 14, "content_type": "application/json"}
    messages = [{**about, **body, "stream": "s", "offset": at, "archived": EPOCH} for at in range(3)]
    traffic = {**about, "hour": EPOCH, "sent": 4, "delivered": 5}
    lake.write_rows("messages", rows_in("messages", messages), 0)
    lake.write_rows("dest_hour", rows_in("dest_hour", [traffic]), 0)
    lake.write_rows("flows_hour", rows_in("flows_hour", [{**about, "hour": EPOCH, "sender": "shop"}]), 0)

    page = (docs / "pipeline.md").read_text("utf-8")
    (query,) = [text for text in re.findall(r'sql --lake LAKE "([^"]*)"', page) if "join" in text]
    assert [*csv.reader(io.StringIO(answer(lake, query, "csv")))][1:] == [
        ["1970-01-01 00:00:00", "/topic/orders", "4", "5", "3"]
    ]

    monkeypatch.setenv("LAKE", lake.url)
    cells = json.loads((docs / "messages.ipynb").read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - as Jupyter does
    assert names["rows"].to_pylist() == [
        {"hour": EPOCH, "vhost": "/", "destination": "/topic/orders", "sent": 4, "delivered": 5, "kept": 3,
         "kept_bytes": 42}
    ]  # fmt: skip
    assert names["totals"] == {EPOCH: 7.5}


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
    "query",
    [
        "copy (select 1) to 'x.csv'",
        "explain analyze copy (select 1 a) to 'x.csv' stored as csv",
        "/* */ explain -- why\n analyze verbose copy (select 1 a) to 'x.csv' stored as csv",
        "analyze copy (select 1 a) to 'x.csv' stored as csv",
        "insert into events select * from events",
        "create table x as select 1",
        "create external table x stored as csv location 'x.csv'",
        "drop table events",
        "delete from events",
        "update events set seq = 1",
        "set datafusion.execution.batch_size = 1",
        "prepare x as select 1",
    ],
)
def test_a_query_only_reads(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, PipelineError), match=r"only reads|ParserError"):
        print_query(lake, query, "csv", io.StringIO())
    assert not (tmp_path / "x.csv").exists()
    assert answer(lake, "select count(*) n from events", "csv") == "n\n2\n"


@pytest.mark.parametrize(
    "query",
    [
        "/* of events */ select seq from events -- all",
        "with a as (select 1) select * from a",
        "(select 1) union (select 2) order by 1",
        "select a.seq from events a join events b on a.seq = b.seq",
        "select a.seq from events a left join segments b on a.file = b.name where b.name is null",
        "select distinct event from events limit 1",
        "select unnest([1, 2])",
        "select row_number() over (order by seq) from events",
        "from events",
        "values (1)",
        "explain select 1",
        "explain analyze select * from events",
        "explain copy (select 1 a) to 'x.csv' stored as csv",
        "describe events",
        "select ';' a;",
    ],
)
def test_whatever_reads_is_answered(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(lake, query, "csv")
    assert not (tmp_path / "x.csv").exists()


def test_a_query_is_given_up_after_the_timeout(lake: Lake) -> None:
    numbers = "generate_series(1, 100000000)"
    long = f"select count(*) from {numbers} a, {numbers} b where a.value * b.value = 7"  # noqa: S608
    command = [sys.executable, "-m", "gateway", "pipeline", "sql", "--lake", str(lake), "--timeout", "100ms", long]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "stomp-gateway: the query took longer than 0.1 seconds (--timeout), and was given up.\n"


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
