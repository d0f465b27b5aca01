"""How an ingest handles odd lines and failures."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.errors import ExitCode, PipelineError
from gateway.pipeline.lake import Lake
from tests.support.journals import JournalMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_tables")]

NAME = "gateway-node1-00000000000000aa-4711-000000.v1.jsonl"
T = 1_795_219_200_000_000
OPEN = json.dumps({"e": "open", "t": T, "q": 0, "v": 1}).encode()


def run(spark: SparkSession, base: Path, journal: str = "journal") -> tuple[ExitCode, str, str]:
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    out, errors = io.StringIO(), io.StringIO()
    wanted = IngestOptions([str(base / journal)], str(base / "lake"))
    return ingest(wanted, Progress(out, errors=errors), spark), out.getvalue(), errors.getvalue()


def segment(base: Path, content: bytes, name: str = NAME) -> Path:
    path = base / "journal" / "d=2026-11-21" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def ask(base: Path, table: str, columns: str) -> list[tuple[object, ...]]:
    rows = Lake(base / "lake").sql(f"select {columns} from {table}").to_pylist()  # noqa: S608
    return [tuple(row.values()) for row in rows]


def good(**fields: object) -> bytes:
    return json.dumps({"e": "send", "t": T, "q": 0} | fields).encode()


BAD = {
    b"": "blank",
    b"   ": "blank",
    b'{"e":"send","t":1': "not a JSON object, or a field of a wrong type",
    b"[]": "not a JSON object, or a field of a wrong type",
    b'[{"e":"send","t":1,"q":1},{"e":"send","t":1,"q":2}]': "not a JSON object, or a field of a wrong type",
    b'"text"': "not a JSON object, or a field of a wrong type",
    b"17": "not a JSON object, or a field of a wrong type",
    b'{"e":"send","t":"1","q":1}': "not a JSON object, or a field of a wrong type",
    b'{"e":"send","t":1.5,"q":1}': "not a JSON object, or a field of a wrong type",
    b'{"e":"send","t":1,"q":1,"p":1}': "not a JSON object, or a field of a wrong type",
    b'{"e":"stat","t":1,"q":1,"cnt":{"send":"x"}}': "not a JSON object, or a field of a wrong type",
    b'{"e":"send","q":1}': "no integer t",
    b"{}": "no integer t",
    b'{"e":"send","t":-1,"q":1}': "t is out of range",
    b'{"e":"send","t":9223372036854775807,"q":1}': "t is out of range",
    b'{"e":"send","t":1}': "no integer q",
    b'{"t":1,"q":1}': "no name e",
    b'{"e":7,"t":1,"q":1}': "no name e",
    b'{"e":{"a":1},"t":1,"q":1}': "no name e",
    b'{"e":"open","t":1,"q":1,"v":2}': "of another schema version",
    b'{"e":"open","t":1,"q":1}': "of another schema version",
    b'{"e":"send","t":1,"q":1,"d":"\xff"}': "not UTF-8",
    b"{'e':'send','t':1,'q':1}": "not a JSON object, or a field of a wrong type",
    b'{"e":"send","t":1,"q":1,"w":NaN}': "not a JSON object, or a field of a wrong type",
    b'{"e":"send","t":1,"q":1,"w":Infinity}': "not a JSON object, or a field of a wrong type",
    b'{"e":"send","t":1,"q":1}{"e":"send","t":1,"q":2}': "more than one JSON object",
    b'{"e":"send","t":1,"q":1} {"e":"send","t":1,"q":2}': "more than one JSON object",
    b'{"e":"send","t":1,"q":1},{"e":"send","t":1,"q":2}': "more than one JSON object",
    b'{"e":"send","t":1,"q":1} garbage': "more than one JSON object",
    b'{"e":"send","t":1,"q":1},': "more than one JSON object",
    b'{"e":"send","t":1,"q":1}]': "more than one JSON object",
    b'{"e":"send","t":1,"q":1},"d":"x"}': "more than one JSON object",
} | {
    b'{"e":"%b","t":1,"q":%b}' % fields: "a number is out of range"
    for fields in (
        (b"send", b"-1"),
        (b"send", b"9223372036854775807"),
        (b"send", b'1,"w":1e300'),
        (b"send", b'1,"w":1e999'),
        (b"send", b'1,"w":0'),
        (b"send", b'1,"b":9223372036854775807'),
        (b"send", b'1,"m":9007199254740993'),
        (b"send", b'1,"hn":-1'),
        (b"conf", b'1,"l":9223372036854775807'),
        (b"ack", b'1,"n":9223372036854775807'),
        (b"end", b'1,"f":{"us":9223372036854775807}'),
        (b"stat", b'1,"cnt":{"send":1,"conf":9223372036854775807}'),
        (b"stat", b'1,"cnt":{"redelivered":-9223372036854775807}'),
        (b"stat", b'1,"h":{"conf:5":9223372036854775807}'),
        (b"stat", b'1,"h":{"conf:31":1,"conf:2147483647":1}'),
        (b"stat", b'1,"h":{"ack:801":1,"ack:31":1}'),
        (b"stat", b'1,"h":{"ack:-1":1}'),
    )
}


def test_bad_lines_are_kept_with_their_text_and_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    lines = [OPEN, *BAD, good(q=5), good(q=6, later=[{"a": [1]}, {"b": "} {"}], d="}{"), good(q=7, e="news")]
    segment(tmp_path, b"\n".join(lines) + b'\n{"e":"send","t":17952')
    code, out, _ = run(spark, tmp_path)
    assert code is ExitCode.OK
    assert f"{len(BAD) + 1} bad lines" in out
    expected = {(line.decode("utf-8", "replace"), reason) for line, reason in BAD.items()}
    expected.add(('{"e":"send","t":17952', "not a JSON object, or a field of a wrong type"))
    rows = ask(tmp_path, "bad_lines", "file, line, reason, d")
    assert {row[1:3] for row in rows} == expected
    assert {(row[0], row[3]) for row in rows} == {(NAME, "2026-11-21")}
    assert sorted(ask(tmp_path, "events", "seq, event, level")) == [
        (0, "open", "session"),
        (5, "send", "message"),
        (6, "send", "message"),
        (7, "news", "session"),
    ]
    assert ask(tmp_path, "segments", "lines, bad") == [(len(lines) + 1, len(BAD) + 1)]


def test_defaults_of_fields_that_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        OPEN,
        good(q=1),
        good(q=2, e="dlv", s="1"),
        good(q=3, e="ack"),
        good(q=4, e="unsub"),
        good(q=5, e="conn"),
        good(q=6, e="sub"),
        good(q=7, e="end", f={"us": 7}),
        good(q=8, e="use"),
        good(q=9, e="dlv", ql=17, w=2.5),
    ]
    segment(tmp_path, b"\n".join(lines) + b"\n")
    run(spark, tmp_path)
    columns = (
        "seq, event, body_bytes, persistent, redelivered, n, weight, tls, prefetch, durable, totals['us'], "
        "totals['unacked'], queue_us"
    )
    assert sorted(ask(tmp_path, "events", columns))[1:] == [
        (1, "send", 0, False, None, None, 1.0, None, None, None, None, None, None),
        (2, "deliver", 0, None, False, None, 1.0, None, None, None, None, None, None),
        (3, "ack", None, None, None, 1, 1.0, None, None, None, None, None, None),
        (4, "unsubscribe", None, None, None, 0, None, None, None, None, None, None, None),
        (5, "connect", None, None, None, None, None, False, None, None, None, None, None),
        (6, "subscribe", None, None, None, None, None, None, 0, False, None, None, None),
        (7, "end", None, None, None, None, None, None, None, None, 7, 0, None),
        (8, "feature", None, None, None, None, None, None, None, None, None, None, None),
        (9, "deliver", 0, None, False, None, 2.5, None, None, None, None, None, 17),
    ]


def test_empty_journal_and_empty_segment(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    for _ in range(2):
        code, out, errors = run(spark, tmp_path)
        assert (code, errors) == (ExitCode.OK, "")
        assert "no segments waiting" in out
        segment(tmp_path, b"")


def test_a_later_version_and_a_strange_name_are_left(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, OPEN)
    segment(tmp_path, b"?", NAME.replace(".v1.", ".v2."))
    segment(tmp_path, good(), "notes.v1.jsonl")
    code, _, errors = run(spark, tmp_path)
    assert code is ExitCode.FAILURE
    assert "1 segment of a later schema version" in errors
    assert ask(tmp_path, "events", "file") == [(NAME,)]


def test_a_segment_without_one_good_line(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, b"?\n?\n")
    assert run(spark, tmp_path)[0] is ExitCode.OK
    assert ask(tmp_path, "bad_lines", "line") == [("?",), ("?",)]
    assert ask(tmp_path, "segments", "lines, bad, first, last") == [(2, 2, None, None)]
    assert run(spark, tmp_path)[1].endswith("nothing new\n")


@pytest.mark.parametrize(("name", "reason"), [("none", "No such file"), ("file", "Not a directory")])
def test_a_journal_that_is_none(spark: SparkSession, tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=f"the journal .*{name} cannot be read: {reason}"):
        run(spark, tmp_path, name)


def test_a_lake_that_is_a_file(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, OPEN)
    (tmp_path / "lake").touch()
    with pytest.raises(PipelineError, match=r"the lake .* cannot be|Not a directory"):
        run(spark, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A lake on a disk of 2 MB."""
    place = tmp_path / "lake"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("free", [0, 100_000])
def test_a_full_disk(spark: SparkSession, small_disk: Path, tmp_path: Path, free: int) -> None:
    made = JournalMaker(tmp_path / "journal").write(4000)
    (small_disk / "filler").write_bytes(bytes((2 << 20) - 16_384 - free))
    with pytest.raises(PipelineError, match="no space is left for the lake"):
        run(spark, tmp_path)
    (small_disk / "filler").unlink()
    assert run(spark, tmp_path)[0] is ExitCode.OK
    assert ask(tmp_path, "events", "count(*), count(distinct seq)") == [(made.lines, made.lines)]


def test_a_lake_on_a_read_only_file_system(spark: SparkSession, small_disk: Path, tmp_path: Path) -> None:
    JournalMaker(tmp_path / "journal").write(50)
    Lake(small_disk / "lake").create("segments")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(PipelineError) as caught:
        run(spark, tmp_path)
    text = str(caught.value)
    assert "read-only" in text or "no permission" in text
    assert "Nothing is lost or counted twice: what was done stays, and the rest waits." in text
    assert "SQLSTATE" not in text
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert run(spark, tmp_path)[0] is ExitCode.OK


def test_an_error_of_spark_is_told_without_its_marks() -> None:
    from gateway.pipeline.spark_session import first_line  # noqa: PLC0415

    text = "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03\n\tat org.apache.spark"
    assert first_line(ValueError(text)) == "Path does not exist: file:/x."
    assert first_line(ValueError("org.apache.spark.SparkException: [X.Y] It did not. SQLSTATE: XX000")) == "It did not."
    assert first_line(ValueError()) == "ValueError"


def test_the_pipeline_says_which_extra_is_missing() -> None:
    program = """
import sys
sys.modules["deltalake"] = None
from gateway.cli.commands import CommandParser
from gateway.cli.pipeline_commands import add_pipeline
from gateway.errors import UsageError
parser = CommandParser()
add_pipeline(parser.add_subparsers())
options = parser.parse_args(["pipeline", "check", "--lake", "lake"])
try:
    options.run(options)
except UsageError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'stomp-gateway[pipeline]'" in answer.stdout
