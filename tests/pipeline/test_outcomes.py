"""How an ingest handles odd lines and failures."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from gateway.pipeline.parquet_lake import ParquetLake

from gateway.errors import ExitCode, PipelineError
from tests.support.journals import JournalMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAME = "gateway-node1-00000000000000aa-4711-000000.v1.jsonl"
T = 1_795_219_200_000_000


@pytest.fixture(autouse=True)
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the computed tables, which take most of the time and are not tested here."""
    monkeypatch.setattr("gateway.pipeline.tables.refresh", lambda *_, **__: None)


def run(spark: SparkSession, base: Path, *, skip_missing: bool = False) -> tuple[ExitCode, str, str]:
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    out, errors = io.StringIO(), io.StringIO()
    wanted = IngestOptions(base / "journal", base / "lake", skip_missing=skip_missing)
    return ingest(wanted, Progress(out, errors=errors), spark), out.getvalue(), errors.getvalue()


def segment(base: Path, content: bytes, name: str = NAME) -> Path:
    path = base / "journal" / "d=2026-11-21" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def ask(base: Path, table: str, columns: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        pattern = f"{base}/lake/{table}/**/*.parquet"
        return database.execute(f"select {columns} from read_parquet('{pattern}', hive_partitioning=true)").fetchall()  # noqa: S608


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
    lines = [*BAD, good(q=5), good(q=6, later=[{"a": [1]}, {"b": "} {"}], d="}{"), good(q=7, e="news")]
    segment(tmp_path, b"\n".join(lines) + b'\n{"e":"send","t":17952')
    code, out, _ = run(spark, tmp_path)
    assert code is ExitCode.OK
    assert f"{len(BAD) + 1} bad lines" in out
    expected = {(line.decode("utf-8", "replace"), reason) for line, reason in BAD.items()}
    expected.add(('{"e":"send","t":17952', "not a JSON object, or a field of a wrong type"))
    rows = ask(tmp_path, "bad_lines", "file, line, reason, cast(d as varchar)")
    assert {row[1:3] for row in rows} == expected
    assert {(row[0], row[3]) for row in rows} == {(NAME, "2026-11-21")}
    assert sorted(ask(tmp_path, "events", "seq, event, level")) == [
        (5, "send", "message"),
        (6, "send", "message"),
        (7, "news", "session"),
    ]
    (manifest,) = ParquetLake(tmp_path / "lake").manifests()
    assert (manifest.segments[0].lines, manifest.segments[0].bad) == (len(lines) + 1, len(BAD) + 1)


def test_every_bad_line_is_found_out_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    """The fast way of reading must notice each of them, or the strict way is never used."""
    from gateway.pipeline.source import scan_segment  # noqa: PLC0415

    from gateway.pipeline.line_parser import read_fast  # noqa: PLC0415

    paths = []
    for number, line in enumerate(BAD):
        name = NAME.replace("000000.", f"{number:06d}.")
        path = segment(tmp_path, good() + b"\n" + line + b"\n", name)
        paths.append(f"file://{path}")
    rows = read_fast(spark, paths).collect()  # all columns: Spark does not parse columns that are not read
    files = [row.file for row in rows]
    noticed = {row.file for row in rows if row.reason is not None or files.count(row.file) != 2}
    noticed |= {name for path in paths for name in [path.rpartition("/")[2]] if scan_segment(Path(path[7:])).suspicious}
    missed = {line for line, path in zip(BAD, paths, strict=True) if path.rpartition("/")[2] not in noticed}
    assert not missed


def test_defaults_of_fields_that_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        good(q=0),
        good(q=1, e="dlv", s="1"),
        good(q=2, e="ack"),
        good(q=3, e="unsub"),
        good(q=4, e="conn"),
        good(q=5, e="sub"),
        good(q=6, e="end", f={"us": 7}),
        good(q=7, e="use"),
    ]
    segment(tmp_path, b"\n".join(lines) + b"\n")
    run(spark, tmp_path)
    columns = (
        "event, body_bytes, persistent, redelivered, n, weight, tls, prefetch, durable, totals['us'], totals['unacked']"
    )
    assert sorted(ask(tmp_path, "events", columns)) == [
        ("ack", None, None, None, 1, 1.0, None, None, None, None, None),
        ("conn", None, None, None, None, None, False, None, None, None, None),
        ("dlv", 0, None, False, None, 1.0, None, None, None, None, None),
        ("end", None, None, None, None, None, None, None, None, 7, 0),
        ("send", 0, False, None, None, 1.0, None, None, None, None, None),
        ("sub", None, None, None, None, None, None, 0, False, None, None),
        ("unsub", None, None, None, 0, None, None, None, None, None, None),
        ("use", None, None, None, None, None, None, None, None, None, None),
    ]


def test_empty_journal_and_empty_segment(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    code, out, errors = run(spark, tmp_path)
    assert (code, errors) == (ExitCode.OK, "")
    assert "no segments waiting" in out
    segment(tmp_path, b"")
    run(spark, tmp_path)
    (manifest,) = ParquetLake(tmp_path / "lake").manifests()
    assert (manifest.events, [found.lines for found in manifest.segments]) == (0, [0])


def test_a_later_version_and_a_strange_name_are_left(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, good())
    segment(tmp_path, b"?", NAME.replace(".v1.", ".v2."))
    segment(tmp_path, good(), "notes.v1.jsonl")
    code, _, errors = run(spark, tmp_path)
    assert code is ExitCode.FAILURE
    assert "1 segment of a later schema version" in errors
    assert "notes.v1.jsonl does not have the name of a segment" in errors
    assert len(ask(tmp_path, "events", "seq")) == 1


def test_a_deleted_segment_is_named_and_can_be_skipped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = segment(tmp_path, good(q=0))
    segment(tmp_path, good(q=1), NAME.replace("000000.", "000001."))
    with monkeypatch.context() as patch:
        patch.setattr("gateway.pipeline.parquet_lake.ParquetLake.staged", _no_space)
        with pytest.raises(PipelineError, match="no space is left for the lake"):
            run(spark, tmp_path)
    gone.unlink()
    with pytest.raises(PipelineError, match=rf"the segment .*{NAME}.* has been deleted.*--skip-missing"):
        run(spark, tmp_path)
    code, _, errors = run(spark, tmp_path, skip_missing=True)
    assert code is ExitCode.OK
    assert NAME in errors
    assert ask(tmp_path, "events", "seq") == [(1,)]


def _no_space(*_: object) -> Path:
    raise OSError(28, "No space left on device")


def test_a_lost_checkpoint_and_lost_manifests(spark: SparkSession, tmp_path: Path) -> None:
    segment(tmp_path, good())
    run(spark, tmp_path)
    lake = ParquetLake(tmp_path / "lake")
    lake.checkpoint.rename(tmp_path / "aside")
    with pytest.raises(PipelineError, match=r"its checkpoint .* is gone"):
        run(spark, tmp_path)
    (tmp_path / "aside").rename(lake.checkpoint)
    lake.manifest(0).unlink()
    with pytest.raises(PipelineError, match=r"the manifests in .* are gone"):
        run(spark, tmp_path)


def checkpoint_before(lake: ParquetLake, batch: int) -> None:
    """Restore the checkpoint to before a batch was planned."""
    for place in ("offsets", "commits", "sources/0"):
        for name in (f"{batch}", f".{batch}.crc"):
            (lake.checkpoint / place / name).unlink(missing_ok=True)


def test_a_checkpoint_older_than_the_lake_is_not_followed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        segment(tmp_path, good(q=number) + b"\n", NAME.replace("000000.", f"{number:06d}."))
        run(spark, tmp_path)
    lake = ParquetLake(tmp_path / "lake")
    shutil.copytree(lake.checkpoint, tmp_path / "aside")
    checkpoint_before(lake, 1)
    segment(tmp_path, good(q=2) + b"\n", NAME.replace("000000.", "000002."))
    with pytest.raises(PipelineError, match="is older than the lake: it knows nothing of batch 1"):
        run(spark, tmp_path)
    with monkeypatch.context() as patch:  # and the check of each batch finds it, should the first check fail to
        patch.setattr("gateway.pipeline.source.require_consistent", lambda _lake: None)
        with pytest.raises(PipelineError, match="is older than the lake: it knows nothing of batch 1"):
            run(spark, tmp_path)
    checkpoint_before(lake, 1)
    checkpoint_before(lake, 0)
    with pytest.raises(PipelineError, match=r"its checkpoint .* is gone"):
        run(spark, tmp_path)
    shutil.rmtree(lake.checkpoint)
    shutil.copytree(tmp_path / "aside", lake.checkpoint)
    assert run(spark, tmp_path)[0] is ExitCode.OK
    assert sorted(ask(tmp_path, "events", "seq")) == [(0,), (1,), (2,)]

    lake.manifest(2).rename(tmp_path / "manifest")
    with pytest.raises(PipelineError, match=r"the manifest .*00000002.json of a batch that was completed is gone"):
        run(spark, tmp_path)
    (tmp_path / "manifest").rename(lake.manifest(2))
    (lake.checkpoint / "commits" / "1").unlink()  # Spark keeps the last hundred
    lake.manifest(1).rename(tmp_path / "manifest")
    with pytest.raises(PipelineError, match=r"the manifest .*00000001.json of a batch that was completed is gone"):
        run(spark, tmp_path)
    assert sorted(ask(tmp_path, "events", "seq")) == [(0,), (1,), (2,)]


def test_segments_that_the_checkpoint_hides_are_not_passed_over_in_silence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = segment(tmp_path, good())
    run(spark, tmp_path)
    elsewhere = tmp_path / "journal" / "d=2026-11-20" / NAME
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(read.read_bytes())
    code, _, errors = run(spark, tmp_path)
    assert code is ExitCode.OK
    assert f"{elsewhere} is left out: a segment of this name has been read as d=2026-11-21/{NAME}" in errors
    elsewhere.unlink()
    monkeypatch.setattr("gateway.pipeline.parquet_lake.ParquetLake.manifests", lambda _: [])
    code, _, errors = run(spark, tmp_path)
    assert code is ExitCode.FAILURE
    assert "waited and were not read" in errors


def test_two_writers(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with (
        ParquetLake(tmp_path / "lake").locked(),
        pytest.raises(PipelineError, match=f"process {os.getpid()}.* is writing"),
    ):
        run(spark, tmp_path)
    assert run(spark, tmp_path)[0] is ExitCode.OK


@pytest.mark.parametrize("name", ["none", "file"])
def test_a_journal_that_is_none(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    with pytest.raises(PipelineError, match=f"the journal .*{name} is not"):
        ingest(IngestOptions(tmp_path / name, tmp_path / "lake"), Progress(quiet=True), spark)


def test_a_lake_that_is_a_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "lake").touch()
    with pytest.raises(PipelineError, match=r"the lake .* cannot be used"):
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


@pytest.mark.parametrize("free", [0, 60_000, 120_000])
def test_a_full_disk(spark: SparkSession, small_disk: Path, tmp_path: Path, free: int) -> None:
    made = JournalMaker(tmp_path / "journal").write(4000)
    ParquetLake(small_disk).create()
    (small_disk / "filler").write_bytes(bytes((2 << 20) - 16_384 - free))
    with pytest.raises(PipelineError, match="no space is left for the lake"):
        run(spark, tmp_path)
    (small_disk / "filler").unlink()
    assert run(spark, tmp_path)[0] is ExitCode.OK
    assert ask(tmp_path, "events", "count(*), count(distinct seq)") == [(made.lines, made.lines)]


def test_the_pipeline_says_which_extra_is_missing() -> None:
    program = """
import argparse, sys
sys.modules["pyspark"] = None
from gateway.cli.pipeline_commands import add_pipeline
from gateway.errors import UsageError
parser = argparse.ArgumentParser()
add_pipeline(parser.add_subparsers())
options = parser.parse_args(["pipeline", "check", "--lake", "lake"])
try:
    options.run(options)
except UsageError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'stomp-gateway[pipeline]'" in answer.stdout
