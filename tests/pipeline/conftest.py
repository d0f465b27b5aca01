"""One Spark session for all tests of the pipeline, since its start is slow, and less work where it is not tested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """The session of all tests here. It ends with the last of them, since it occupies a gigabyte."""
    from gateway.pipeline.spark_session import SparkOptions, spark_session  # noqa: PLC0415 - others run without it

    # A second partition has nothing to do with so few rows; `test_spark_submit` has three, and right tables.
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    with spark_session(SparkOptions("local[2]", settings), quick_start=True) as session:
        yield session


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the computed tables, which take most of an ingest's time, where they are not tested."""
    monkeypatch.setattr("gateway.pipeline.tables.refresh", lambda *_, **__: 0)
    monkeypatch.setattr("gateway.pipeline.tables.lacks_batches", lambda _: False)
