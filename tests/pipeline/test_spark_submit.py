"""Spark in processes of its own: under spark-submit, and with a Java that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gateway
from gateway.pipeline import spark_session
from gateway.pipeline.lake import Lake
from tests.pipeline.recomputed import assert_right
from tests.support.journals import JournalMaker
from tests.support.lakes import UNCOMPILED

pytestmark = pytest.mark.spark


def test_spark_submit_with_settings_of_a_directory(tmp_path: Path) -> None:
    """As Spark's users start programs: by spark-submit, with SPARK_CONF_DIR. Nothing goes to the terminal but ours."""
    import pyspark  # noqa: PLC0415

    spark_session._require_java()  # spark-submit itself knows only PATH and JAVA_HOME
    made = JournalMaker(tmp_path / "journal").write(50)
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "spark.master local[1]\nspark.sql.shuffle.partitions 3\n"
        "spark.sql.ansi.enforceReservedKeywords true\n"
        + "".join(f"{name} {value}\n" for name, value in UNCOMPILED.items())
        + "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"
    )
    home = Path(pyspark.__file__).parent
    root = Path(gateway.__file__).parents[1]
    answer = subprocess.run(
        [
            home / "bin" / "spark-submit", root / "gateway" / "__main__.py", "pipeline", "ingest",
            "--journal", tmp_path / "journal", "--lake", tmp_path / "lake",
        ],
        env={**os.environ, "SPARK_CONF_DIR": str(conf), "PYTHONPATH": str(root), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert f"done: 1 batch, {len(made.segments)} segment, {made.lines} events" in answer.stdout
    lake = Lake(tmp_path / "lake")
    assert lake.sql("select count(*) n from events").to_pylist() == [{"n": made.lines}]
    # Of three partitions, where the tests' own session has one.
    assert_right(lake, tmp_path / "journal")


def test_nothing_but_our_own_words_is_printed_when_java_is_killed() -> None:
    """PySpark's server of accumulators is connected to Java. It serves one connection after the other."""
    program = """
import os, signal, socket
import psutil
from gateway.pipeline.spark_session import SparkOptions, spark_session

with spark_session(SparkOptions("local[1]"), quick_start=True) as spark:
    spark.range(1).collect()
    server = spark.sparkContext._accumulatorServer
    for child in psutil.Process().children(recursive=True):
        child.send_signal(signal.SIGKILL)
    with socket.create_connection(server.server_address) as next_one:
        next_one.sendall(server.auth_token.encode()[:-1] + b"?")
        next_one.recv(1)
"""
    command, root = [sys.executable, "-c", program], Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
