"""The Spark session: it starts soon, says nothing on the terminal, and leaves nothing behind.

What a local start costs is the loading of some 20,000 classes. An archive of them (Java's class data sharing), made at
the end of the first run and kept in the user's cache, halves it. Java's first compiler alone (``brief``) saves another
third of the start, but code that runs for longer than some seconds is three times as slow with it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pwd
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import STDOUT, Popen, TimeoutExpired
from types import TracebackType
from typing import Final

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.java import Java, find_java

DEFAULT_MASTER: Final = "local[*]"

_BRIEF: Final = "-XX:TieredStopAtLevel=1"
_GOODBYE: Final = 180.0
"""Seconds for Java to end; only where it makes the archive it needs more than one."""
_LOG_LIMIT: Final = 8_000_000
"""Octets of an old log that a new start still adds to."""
_MASTER: Final = re.compile(
    r"local|local\[(?:\*|[1-9][0-9]{0,3})(?:,[1-9][0-9]*)?\]|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]|yarn"
    r"|spark://[^\s/:]+:[0-9]+(?:,[^\s/:]+:[0-9]+)*|k8s://\S+"
)
_MEMORY: Final = re.compile(r"([1-9][0-9]{0,8})([kmgt])", re.IGNORECASE)
_KIBIBYTES: Final = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}
_LEAST_MEMORY: Final = 512 << 10
"""Kibibytes of heap; with less Spark does not start."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How Spark is to run.

    Args:
        master: Spark's master; anything that begins with ``local`` is this process's own.
        driver_memory: Java's heap, as Spark writes it.
        brief: the run is short, so starting soon counts for more than working fast.

    Raises:
        UsageError: Spark would take the one or the other for nothing.
    """

    master: str = DEFAULT_MASTER
    driver_memory: str = "2g"
    brief: bool = False

    def __post_init__(self) -> None:
        check_master(self.master)
        check_memory(self.driver_memory)

    @property
    def local(self) -> bool:
        """Whether no cluster is asked."""
        return self.master.startswith("local")


def check_master(text: str) -> None:
    """See whether a text names a master.

    Raises:
        UsageError: it does not.
    """
    if _MASTER.fullmatch(text) is None:
        raise UsageError(
            f"--master {text}: no master of Spark is called so. Write local[*], local[4], or where the cluster is, as "
            "in spark://host:7077."
        )


def check_memory(text: str) -> None:
    """See whether a text is a size of Java's heap that Spark can start with.

    Raises:
        UsageError: it is not.
    """
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise UsageError(f"--driver-memory {text}: write a size, as in 2g or 1500m.")
    if int(found[1]) * _KIBIBYTES[found[2].lower()] < _LEAST_MEMORY:
        raise UsageError(f"--driver-memory {text}: Spark needs at least 512m.")


class Spark:
    """A running Spark; leave it with ``with``.

    Args:
        wishes: how it is to run.
        log: a file that takes all that Spark and Java have to say.

    Raises:
        PipelineError: there is no Java, or Spark does not start.
    """

    def __init__(self, wishes: Wishes, log: Path) -> None:
        _hush()
        _require_name()
        java = find_java()
        self._archive = _Archive.of(java) if wishes.local else None
        conf = _configuration(wishes, self._archive)
        self._gateway, self._java = _launch(conf, java, log)
        try:
            with _handlers_kept():
                context = SparkContext(gateway=self._gateway, conf=conf)
            context.setLogLevel("WARN")
            self.session = SparkSession(context)
        except (PySparkException, Py4JError, OSError) as error:
            self._leave()
            raise PipelineError(_not_started(conf, log)) from error
        except BaseException:  # Ctrl-C, twice
            self._java.kill()
            self._leave()
            raise

    def __enter__(self) -> SparkSession:
        return self.session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End Spark and Java, and wait until they are gone."""
        with suppress(Exception):  # Java may be gone already, and then there is nothing to stop
            self.session.stop()
        self._leave()

    def _leave(self) -> None:
        if self._java.stdin is not None:
            self._java.stdin.close()  # Spark's Java ends with the end of its input
        try:
            self._java.wait(_GOODBYE)
        except TimeoutExpired:
            self._java.kill()
            self._java.wait()
        # Only now: while Java lives, closing waits for a connection that waits for Java.
        with suppress(Exception):
            self._gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        if self._archive is not None:
            self._archive.keep()


class _Archive:
    """Java's archive of the classes that Spark loads: used where there is one, made at this run's end where not."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._made: Path | None = None

    @classmethod
    def of(cls, java: Java) -> _Archive | None:
        """The archive for this Java and this Spark; None where no cache can be written, or not be named to Java."""
        place = Path(pyspark.__file__).parent
        key = hashlib.sha256(f"{java.home}\n{java.text}\n{place}\n{pyspark.__version__}".encode()).hexdigest()[:16]
        try:
            base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
            directory = Path(base) / "stomp-gateway"
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # there is no home
            return None
        # Spark takes Java's options apart at white space, and has its own mind about quotes.
        if not os.access(directory, os.W_OK) or re.search(r"[\s\"'\\]", str(directory)):
            return None
        _sweep(directory)
        return cls(directory / f"spark-{key}.jsa")

    def options(self) -> list[str]:
        """What Java is told: use it, or make it."""
        if self._file.exists():
            return [f"-XX:SharedArchiveFile={self._file}", "-Xshare:auto", "-Xlog:cds=off"]
        if self._made is None:
            self._made = self._file.with_suffix(f".{os.getpid()}.part")
        return [f"-XX:ArchiveClassesAtExit={self._made}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def keep(self) -> None:
        """After Java has ended: what it made is complete."""
        if self._made is not None:
            with suppress(OSError):
                self._made.replace(self._file)
            self._made = None


def _sweep(directory: Path) -> None:
    """Remove the archives, 190 MB each, that runs left half made which were killed."""
    for path in directory.glob("spark-*.part"):
        process = path.name.split(".")[-2]
        if process.isdigit() and not _lives(int(process)):
            with suppress(OSError):
                path.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # somebody else's
    return True


@contextmanager
def no_root_logging() -> Iterator[None]:
    """For a command: what py4j says to the root logger is not shown.

    Without a handler there Python would make one for the terminal. Who uses the pipeline as a library has their own.
    """
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    try:
        yield
    finally:
        root.removeHandler(silent)


def _not_started(conf: SparkConf, log: Path) -> str:
    master, memory = conf.get("spark.master"), conf.get("spark.driver.memory")
    return (
        f"Spark did not start with --master {master} and --driver-memory {memory}: is the master there, and is there "
        f"so much memory? What Spark said is in {log}."
    )


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Spark puts a handler of its own for Ctrl-C in the place of whatever is there."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _require_name() -> None:
    """Hadoop, which Spark reads files with, asks for the user's name, and gives up where there is none."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise PipelineError(
            f"the user id {os.getuid()} has no name on this machine, and Spark does not start without one. Run as a "
            "user who is in /etc/passwd; in a container, add a line for this id to it."
        ) from None


def _hush() -> None:
    # Whatever they log is raised as well; without a handler of their own it would go to the terminal.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        own = PySparkLogger.getLogger(name)  # comes with a handler for the terminal
        own.handlers[:] = [logging.NullHandler()]
        own.propagate = False
    for name in ("py4j", "pyspark", "PySparkLogger"):
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _configuration(wishes: Wishes, archive: _Archive | None) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    conf.setAppName("stomp-gateway pipeline").setMaster(wishes.master)
    conf.set("spark.driver.memory", wishes.driver_memory)
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    conf.set("spark.sql.session.timeZone", "UTC")
    conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    conf.set("spark.sql.parquet.compression.codec", "zstd")
    conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    # Without it every task sorts its rows by day and level before it writes them.
    conf.set("spark.sql.maxConcurrentOutputFileWriters", "64")
    # The paths of a batch's segments are known; finding them again as a job of its own costs more than it saves.
    conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "10000")
    conf.set("spark.sql.sources.ignoreMissingFiles", "false")
    conf.set("spark.sql.streaming.numRecentProgressUpdates", "1")
    if wishes.local:
        _set_local(conf, wishes, archive)
    return conf


def _set_local(conf: SparkConf, wishes: Wishes, archive: _Archive | None) -> None:
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    conf.set("spark.sql.shuffle.partitions", str(max(2, min(cores(wishes.master), 32))))
    # One task to a core instead of one to 128 MB, and small segments weigh as little as they are.
    conf.set("spark.sql.files.maxPartitionBytes", "1g").set("spark.sql.files.openCostInBytes", "65536")
    options = ["-XX:+UseSerialGC" if cores(wishes.master) <= 2 else "-XX:+UseParallelGC"]  # noqa: PLR2004
    if wishes.brief:
        options.append(_BRIEF)
    if archive is not None:
        options += archive.options()
    conf.set("spark.driver.extraJavaOptions", " ".join(options))


def cores(master: str) -> int:
    """How many tasks a local master runs at a time."""
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    if inside == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(inside) if inside.isdigit() else 1


def _launch(conf: SparkConf, java: Java, log: Path) -> tuple[JavaGateway, Popen[bytes]]:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.unlink()
    with log.open("ab") as out, _environment(java):
        try:
            gateway = launch_gateway(conf, {"stdout": out, "stderr": STDOUT})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            raise PipelineError(_not_started(conf, log)) from error
    process: Popen[bytes] = gateway.proc
    return gateway, process


@contextmanager
def _environment(java: Java) -> Iterator[None]:
    """What the launched Spark inherits: this Java, this Python's Spark, and nothing else that is meant for others."""
    ours = {"JAVA_HOME": str(java.home), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    if "SPARK_LOCAL_DIRS" not in os.environ:
        ours["SPARK_LOCAL_DIRS"] = tempfile.gettempdir()
    others = ("PYSPARK_SUBMIT_ARGS", "SPARK_TESTING", "PYSPARK_GATEWAY_PORT")
    before = {name: os.environ.get(name) for name in (*ours, *others)}
    os.environ.update(ours)
    for name in others:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
