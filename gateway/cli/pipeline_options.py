"""What the commands of `stomp-gateway pipeline` share: the packages that they need, options, and errors."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Final

from gateway.cli.commands import Run, duration
from gateway.errors import ExitCode, PipelineError, UsageError

if TYPE_CHECKING:
    from gateway.pipeline.spark_session import SparkOptions

WRONG: Final = "the command line is wrong, or the extra is not installed"
"""What exit code 2 of these commands means."""


def needing(*packages: str) -> Callable[[Run], Run]:
    """Decorates a command that needs the extra, and these packages of it besides those of every command."""

    def decorate(run: Run) -> Run:
        @wraps(run)
        def checked(options: argparse.Namespace) -> ExitCode:
            missing = [name for name in (*packages, "deltalake", "pyarrow") if importlib.util.find_spec(name) is None]
            if missing:
                names = " and ".join(missing)
                advice = "pip install 'stomp-gateway[pipeline]'"
                raise UsageError(f"the pipeline needs {names}, not installed here: {advice}")
            with _private_files(), _explained(getattr(options, "lake", "the lakes")):
                return run(options)

        return checked

    return decorate


@contextmanager
def _private_files() -> Iterator[None]:
    """Let only user and group read new files, Java's files too: lakes and reports contain personal data."""
    before = os.umask(0o077)
    os.umask(before | 0o027)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _explained(lake: object) -> Iterator[None]:
    """Turn disk errors and damaged files into a PipelineError that says what to do."""
    from pyarrow import ArrowException  # noqa: PLC0415

    from gateway.pipeline.lake import known_trouble  # noqa: PLC0415

    try:
        yield
    except BrokenPipeError:  # the reader of standard output has closed it: not a disk error
        raise
    except OSError as error:
        where = error.filename or lake
        sentence = known_trouble(str(error), where) or f"{error.strerror or error}: {where}."
        raise PipelineError(sentence) from error
    except ArrowException as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise PipelineError(f"a file of {lake} is damaged: {reason}. `pipeline check` says which.") from error


def add_lake(parser: argparse.ArgumentParser) -> None:
    """Add the lake that a command reads."""
    parser.add_argument(
        "--lake", required=True, metavar="PLACE", help="the lake: a directory, or a URL such as s3://..."
    )


def add_new_lake(parser: argparse.ArgumentParser) -> None:
    """Add the lake that a command fills."""
    parser.add_argument(
        "--lake", required=True, metavar="PLACE", help="a directory or URL for the lake; created if it is missing"
    )


def add_schedule(parser: argparse.ArgumentParser, once: str, every: str) -> None:
    """Add `--once` and `--every`, with their help."""
    schedule = parser.add_mutually_exclusive_group()
    schedule.add_argument("--once", action="store_true", help=f"{once}, then end (default)")
    schedule.add_argument("--every", type=duration, metavar="TIME", help=f"look for {every} this often: 30s or 5m")


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Add the options about how to run Spark; see `spark_options`."""
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--master", metavar="URL",
        help="local[N], or a cluster such as spark://host:7077 (default: Spark's own, local[*])",
    )  # fmt: skip
    spark.add_argument(
        "--conf", action="append", default=[], type=_setting, metavar="KEY=VALUE",
        help="a setting of Spark, such as spark.driver.memory=4g; repeat it for several",
    )  # fmt: skip
    spark.add_argument("--packages", metavar="LIST", help="Maven coordinates of packages that Spark is to load")


def spark_options(options: argparse.Namespace) -> SparkOptions:
    """What a command line says about Spark."""
    from gateway.pipeline.spark_session import SparkOptions  # noqa: PLC0415

    return SparkOptions(options.master, dict(options.conf), options.packages)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is not a setting of Spark: write spark.driver.memory=4g")
    return name, value
