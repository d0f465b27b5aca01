"""One Spark session for all tests of the pipeline, since its start is slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests here. It ends with the last of them, since it occupies a gigabyte."""
    from gateway.pipeline.spark_session import Spark, SparkOptions  # noqa: PLC0415 - the other tests run without it

    with Spark(
        SparkOptions("local[2]", "1g", short_run=True), tmp_path_factory.mktemp("spark") / "spark.log"
    ) as session:
        yield session
