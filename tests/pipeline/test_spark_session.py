"""Options, error messages and the cache of the Spark session."""

from __future__ import annotations

import logging
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from gateway.pipeline.java import Java

from gateway.errors import PipelineError, UsageError

pytestmark = pytest.mark.spark

JAVA = Java(Path("/java"), 17, "openjdk 17")


@pytest.mark.parametrize(
    ("master", "memory", "said"),
    [
        ("nonsense", "2g", "--master nonsense"),
        ("local[0]", "2g", "--master local"),
        ("spark://host", "2g", "--master spark://host"),
        ("", "2g", "--master"),
        ("local[*]", "lots", "--driver-memory lots: write a size"),
        ("local[*]", "2", "--driver-memory 2: write a size"),
        ("local[*]", "100m", "at least 512m"),
    ],
)
def test_what_spark_cannot_start_with_is_refused(master: str, memory: str, said: str) -> None:
    from gateway.pipeline.spark_session import SparkOptions  # noqa: PLC0415

    with pytest.raises(UsageError) as refused:
        SparkOptions(master, memory)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("master", "memory"),
    [
        ("local", "512m"),
        ("local[4]", "1G"),
        ("local[*,3]", "600000k"),
        ("spark://a:7077,b:7077", "1500m"),
        ("yarn", "2g"),
        ("k8s://https://host:6443", "2g"),
    ],
)
def test_what_spark_can_start_with_is_not(master: str, memory: str) -> None:
    from gateway.pipeline.spark_session import SparkOptions  # noqa: PLC0415

    assert SparkOptions(master, memory).is_local == master.startswith("local")


def test_a_user_without_a_name_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.pipeline.spark_session import Spark, SparkOptions  # noqa: PLC0415

    def nobody(_user: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(PipelineError, match=r"has no name on this machine.*/etc/passwd"):
        Spark(SparkOptions(), tmp_path / "spark.log")


def test_archives_that_killed_runs_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.pipeline.spark_session import _ClassArchive  # noqa: PLC0415

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    cache = tmp_path / "stomp-gateway"
    cache.mkdir()
    for name in (f"spark-a.{gone.pid}.part", f"spark-a.{os.getpid()}.part", "spark-a.jsa", f"other.{gone.pid}.part"):
        (cache / name).touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _ClassArchive.of(JAVA) is not None
    left = {path.name for path in cache.iterdir()}
    assert left == {f"spark-a.{os.getpid()}.part", "spark-a.jsa", f"other.{gone.pid}.part"}


def test_no_archive_where_java_could_not_be_told_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.pipeline.spark_session import _ClassArchive  # noqa: PLC0415

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    assert _ClassArchive.of(JAVA) is None
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless(_path: Path) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert _ClassArchive.of(JAVA) is None


def test_nothing_of_what_is_logged_comes_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    program = """
import logging
from gateway.pipeline.spark_session import _silence_loggers, no_root_logging
_silence_loggers()
from pyspark.logger import PySparkLogger
for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
    PySparkLogger.getLogger(name).exception("to nobody")
with no_root_logging():
    logging.info("to nobody")
    logging.error("to nobody")
assert not logging.getLogger().handlers
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert capfd.readouterr() == ("", "")
    assert not any(type(handler) is logging.NullHandler for handler in logging.getLogger().handlers)
