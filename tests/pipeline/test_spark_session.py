"""How Spark is started, and what it is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_user_s_settings_come_before_ours() -> None:
    from gateway.pipeline.spark_session import SparkOptions  # noqa: PLC0415

    options = SparkOptions("spark://host:7077", {"spark.ui.enabled": "true"}, "a:b:1")
    assert options.settings(quick_start=True) == {
        "spark.ui.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.codegen.cache.maxEntries": "2000",
        "spark.master": "spark://host:7077",
        "spark.jars.packages": "a:b:1",
    }
    name = "spark.driver.extraJavaOptions"
    assert "TieredStopAtLevel=1" in SparkOptions().settings(quick_start=True)[name]
    assert SparkOptions(None, {name: "-Xmx1g"}).settings(quick_start=True)[name] == "-Xmx1g"
    assert name not in SparkOptions().settings(quick_start=False)


@pytest.mark.parametrize(
    "line", ["spark.driver.extraJavaOptions -Da=1", "  spark.driver.defaultJavaOptions=-XX:+UseG1GC"]
)
def test_java_options_of_spark_defaults_conf_stay(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.pipeline.spark_session import SparkOptions  # noqa: PLC0415

    name = "spark.driver.extraJavaOptions"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert name in SparkOptions().settings(quick_start=True)
    (tmp_path / "spark-defaults.conf").write_text(f"# {name} -Db=2\nspark.ui.enabled true\n")
    assert name in SparkOptions().settings(quick_start=True)
    (tmp_path / "spark-defaults.conf").write_text(f"spark.ui.enabled true\n{line}\n")
    assert name not in SparkOptions().settings(quick_start=True)


def test_a_quick_start_leaves_room_for_the_code_of_many_batches(spark: SparkSession) -> None:
    """Java ends, or runs on without its compiler, when it has no room left for compiled code."""
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # type: ignore[union-attr]
    room = sum(pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code"))
    assert room >= 240 << 20


def test_what_tables_need_is_set_and_the_session_of_others_is_left_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    from gateway.pipeline.spark_session import configured  # noqa: PLC0415

    zone, partitions = "spark.sql.session.timeZone", "spark.sql.shuffle.partitions"
    theirs = spark.newSession()
    theirs.conf.set(zone, "Asia/Tokyo")
    ours = configured(theirs)
    # What somebody has set stays, as in the session of the tests.
    assert (ours.conf.get(zone), ours.conf.get(partitions)) == ("UTC", "1")
    nothing = SparkConf(loadDefaults=False)
    monkeypatch.setattr(SparkContext, "getConf", lambda _: nothing)
    assert configured(theirs).conf.get(partitions) == "2"
    assert theirs.conf.get(zone) == "Asia/Tokyo"


def test_an_error_of_java_is_told_in_java_s_words(spark: SparkSession) -> None:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    from gateway.pipeline.spark_session import first_line  # noqa: PLC0415

    with pytest.raises(Py4JJavaError) as caught:
        spark.sparkContext._jvm.java.util.ArrayList().get(5)  # type: ignore[union-attr]
    assert first_line(caught.value) == "java.lang.IndexOutOfBoundsException: Index 5 out of bounds for length 0"
    assert first_line(ValueError("first\nsecond")) == "first"


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.pipeline import spark_session  # noqa: PLC0415

    monkeypatch.setattr(spark_session, "_INSTALLED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("JAVA_HOME", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    with (
        pytest.raises(PipelineError, match=r"no Java was found.*openjdk-17-jre-headless"),
        spark_session.spark_session(spark_session.SparkOptions()),
    ):
        pass
    program = tmp_path / "java-17" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch()
    spark_session._require_java()
    assert os.environ.pop("JAVA_HOME") == str(tmp_path / "java-17")
