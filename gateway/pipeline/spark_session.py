"""The Spark session: as Spark's users configure it, with defaults of our own for what they leave open."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import BaseServer
from typing import Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from gateway.errors import PipelineError

_INSTALLED: Final = Path("/usr/lib/jvm")
"""Where Linux distributions install Java."""

_REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
}
"""Without these the tables would have other contents, or none."""

_DEFAULTS: Final = {
    # Otherwise every task sorts its rows by day and level before it writes them.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Tables are read by the names of their files; a Spark job that looks for each costs more than it saves.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # One task for each core instead of one for 128 MB, and no extra weight for small segments.
    "spark.sql.files.maxPartitionBytes": "1g",
    "spark.sql.files.openCostInBytes": "65536",
}
_AT_START: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark compiles 300 classes to compute the tables, keeps 100 unless told otherwise, and would compile all again.
    "spark.sql.codegen.cache.maxEntries": "2000",
}
_QUICK_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=240m"
"""Only Java's first compiler: a third of the start is saved, and code that runs for long is three times as slow.

It is given the room for classes at once, which otherwise grows by a full collection each time, and as much for compiled
code as both compilers have, since tables fill the 48 MiB of one.
"""
_MARKS: Final = re.compile(r"^(?:[\w.$]+: )*\[[A-Z0-9_.]+\] |\s*SQLSTATE: \w{5}$")
"""Spark's name of an error, with Java's class before it, and SQL's: for programs, not for people."""
_JAVA_OPTIONS: Final = frozenset({"spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"})


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How to run Spark: its master URL, settings, and Maven coordinates, such as that of Hadoop's S3 connector.

    Without a ``master`` Spark's own configuration decides, or else it is all cores of this machine.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: str | None = None

    def settings(self, *, quick_start: bool) -> dict[str, str]:
        """The settings to start with, ours below the user's."""
        found = dict(_AT_START)
        # Not beside the user's: Java does not start with two garbage collectors.
        has_java_options = _JAVA_OPTIONS & {*self.conf, *_default_names()}
        if quick_start and (self.master or "local").startswith("local") and not has_java_options:
            found["spark.driver.extraJavaOptions"] = _QUICK_START
        if self.master is not None:
            found["spark.master"] = self.master
        if self.packages is not None:
            found["spark.jars.packages"] = self.packages
        return found | dict(self.conf)


class JavaEndedError(ConnectionError):
    """Java has ended while Spark was in use. ``log`` is the file with what it printed."""

    def __init__(self, log: str) -> None:
        super().__init__("Java has ended")
        self.log = log


@contextmanager
def spark_session(options: SparkOptions, *, quick_start: bool = False) -> Iterator[SparkSession]:
    """Start Spark, or join the one of `spark-submit`, and stop it at the end.

    ``quick_start``: that it starts quickly matters more than its speed afterwards. Raises PipelineError if there is no
    Java or Spark does not start, and JavaEndedError in place of an error of the connection to Java.
    """
    _require_java()
    _silence_loggers()
    # Spark's processes that read streams need this package, so the Python that has it.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    descriptor, log = tempfile.mkstemp(prefix="stomp-gateway-spark-", suffix=".log")
    builder = SparkSession.builder.appName("stomp-gateway pipeline")
    for name, value in options.settings(quick_start=quick_start).items():
        builder = builder.config(name, value)
    try:
        with _java_errors_to(descriptor), _sigint_handler_kept():
            session = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise PipelineError(
            f"Spark did not start: {first_line(error)}. What it said is in {log}. It needs Java 17 or later."
        ) from error
    finally:
        os.close(descriptor)
    has_java_ended = False
    try:
        session.sparkContext.setLogLevel("ERROR")
        _silence_accumulators(session)
        yield configured(session)
    except (Py4JNetworkError, ConnectionError) as error:
        has_java_ended = True
        raise JavaEndedError(log) from error
    finally:
        if not has_java_ended:
            Path(log).unlink(missing_ok=True)
        # If somebody has killed Java, these are raised, or PySpark warns of it.
        with suppress(Py4JError, OSError), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            session.stop()


def configured(session: SparkSession) -> SparkSession:
    """A session with our settings, of the same Spark; what the user has set stays."""
    explicit = session.sparkContext.getConf()
    own = session.newSession()
    cores = session.sparkContext.defaultParallelism
    for name, value in {**_DEFAULTS, "spark.sql.shuffle.partitions": str(max(2, cores))}.items():
        if not explicit.contains(name):
            own.conf.set(name, value)
    for name, value in _REQUIRED.items():
        own.conf.set(name, value)
    return own


def source_options(
    source: str, given: Mapping[str, str], known: Sequence[str], ignored: Sequence[str] = ()
) -> dict[str, str]:
    """The options of a data source by their names in lower case, with the password that a file holds.

    ``ignored`` are names of Spark's own. Raises PipelineError for a name that is not known.
    """
    found = {name.lower(): value for name, value in given.items()}
    if unknown := found.keys() - {name.lower() for name in (*known, *ignored)}:
        raise PipelineError(f"{source}: there is no option {min(unknown)!r}. There are {', '.join(known)}.")
    if "passwordfile" in found:
        found["password"] = Path(found["passwordfile"]).read_text(encoding="utf-8").rstrip("\r\n")
    return found


def option_number(source: str, found: Mapping[str, str], option: str, default: int = 0) -> int:
    """A number above 0 out of `source_options`. Raises PipelineError for anything else."""
    text = found.get(option.lower(), str(default))
    if not text.isdecimal() or not int(text):
        raise PipelineError(f"{source}: {option} is {text!r}, which is no number above 0.")
    return int(text)


def _default_names() -> list[str]:
    """The names that spark-defaults.conf sets."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    path = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")
    text = path.read_text(errors="replace") if path.is_file() else ""
    return re.findall(r"^\s*([^\s=:#!]+)", text, re.MULTILINE)


def first_line(error: BaseException) -> str:
    """The first line of an error's text; of an error that Java has raised, of Java's own text."""
    try:
        text = str(error)
    except (Py4JError, OSError):  # Java has the text, and has ended
        text = ""
    if isinstance(error, Py4JJavaError):
        text = text.partition("\n: ")[2]
    line = (text.strip() or type(error).__name__).splitlines()[0]
    return (_MARKS.sub("", line).strip() or type(error).__name__)[:300]


def _require_java() -> None:
    """Let JAVA_HOME name a Java if neither it nor PATH has one; raise PipelineError if there is none."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or "JAVA_HOME" in os.environ or shutil.which("java"):
        return  # spark-submit has started it, or it will be found
    installed = sorted(_INSTALLED.glob("*/bin/java"))
    if not installed:
        raise PipelineError(
            "no Java was found. Spark needs Java 17 or later: install it, for example with `apt-get install "
            "openjdk-17-jre-headless`, or let JAVA_HOME name one that is there."
        )
    os.environ["JAVA_HOME"] = str(installed[-1].parent.parent)


def _silence_loggers() -> None:
    """Keep off the terminal what Spark's Python side logs: it raises the same as an exception."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).handlers[:] = []  # it has one for the terminal
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "PySparkLogger", "pyspark", "py4j"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
    if not logging.root.handlers:  # Py4J logs there, with a traceback, that Java has ended
        logging.root.addHandler(logging.NullHandler())


def _silence_accumulators(session: SparkSession) -> None:
    """Keep off the terminal the traceback of PySpark's accumulators when Java is killed: it is connected to them."""
    server = getattr(session.sparkContext, "_accumulatorServer", None)
    if isinstance(server, BaseServer):
        server.handle_error = lambda *_: None  # type: ignore[method-assign]


@contextmanager
def _java_errors_to(descriptor: int) -> Iterator[None]:
    """Let Java, which is started now and inherits it, write its standard error elsewhere.

    Java warns there of things that nobody can change; with them a job of cron would send mail at every run.
    """
    own = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


@contextmanager
def _sigint_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGINT, which Spark replaces by its own."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
