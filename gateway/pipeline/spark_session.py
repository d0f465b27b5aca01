"""The Spark session: it starts quickly, prints nothing to the terminal, and leaves no process behind.

A local start spends its time on loading some 20,000 classes. An archive of them (Java's class data sharing) halves it;
the first run makes the archive at its end and keeps it in the user's cache. Using only Java's first compiler
(``short_run``) saves another third of the start, but makes code that runs for more than some seconds three times as
slow.
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
from gateway.pipeline.parquet_lake import ParquetLake

_FIRST_COMPILER_ONLY: Final = "-XX:TieredStopAtLevel=1"
_EXIT_TIMEOUT: Final = 180.0
"""Seconds for Java to end; it needs more than one only when it makes the archive."""
_LOG_LIMIT: Final = 8_000_000
"""Bytes of an old log beyond which a new start replaces it."""
_MASTER: Final = re.compile(
    r"local|local\[(?:\*|[1-9][0-9]{0,3})(?:,[1-9][0-9]*)?\]|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]|yarn"
    r"|spark://[^\s/:]+:[0-9]+(?:,[^\s/:]+:[0-9]+)*|k8s://\S+"
)
_MEMORY: Final = re.compile(r"([1-9][0-9]{0,8})([kmgt])", re.IGNORECASE)
_KIBIBYTES: Final = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}
_LEAST_MEMORY: Final = 512 << 10
"""KiB of heap; Spark does not start with less."""

_DISK_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")
_MISSING_SEGMENT: Final = re.compile(r"(?:File |path: )?file:(?://)?(/\S+?\.jsonl)")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How to run Spark.

    Args:
        master: Spark's master URL; ``local...`` runs in a Java of this process's own.
        driver_memory: Java's heap, in Spark's notation.
        short_run: a quick start matters more than the speed afterwards.

    Raises:
        UsageError: Spark would not accept the master or the memory.
    """

    master: str = "local[*]"
    driver_memory: str = "2g"
    short_run: bool = False

    def __post_init__(self) -> None:
        _check_master(self.master)
        _check_memory(self.driver_memory)

    @property
    def is_local(self) -> bool:
        """Whether Spark runs on this machine and not on a cluster."""
        return self.master.startswith("local")


def _check_master(text: str) -> None:
    """Raise UsageError if a text is not a master URL of Spark."""
    if _MASTER.fullmatch(text) is None:
        raise UsageError(
            f"--master {text}: this is not a master of Spark. Write local[*], local[4], or where the cluster is, as "
            "in spark://host:7077."
        )


def _check_memory(text: str) -> None:
    """Raise UsageError if a text is not a size of Java's heap that Spark can start with."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise UsageError(f"--driver-memory {text}: write a size, as in 2g or 1500m.")
    if int(found[1]) * _KIBIBYTES[found[2].lower()] < _LEAST_MEMORY:
        raise UsageError(f"--driver-memory {text}: Spark needs at least 512m.")


class Spark:
    """A running Spark, as a context manager that gives the session; ``log`` receives the output of Spark and Java.

    Raises:
        PipelineError: there is no Java, or Spark does not start.
    """

    def __init__(self, options: SparkOptions, log: Path) -> None:
        _silence_loggers()
        _require_user_name()
        java = find_java()
        self._archive = _ClassArchive.of(java) if options.is_local else None
        conf = _configuration(options, self._archive)
        self._gateway, self._java = _launch(conf, java, log)
        try:
            with _sigint_handler_kept():
                context = SparkContext(gateway=self._gateway, conf=conf)
            context.setLogLevel("WARN")
            self.session = SparkSession(context)
        except (PySparkException, Py4JError, OSError) as error:
            self._wait_for_java()
            raise PipelineError(_not_started(conf, log)) from error
        except BaseException:  # such as a second Ctrl-C
            self._java.kill()
            self._wait_for_java()
            raise

    def __enter__(self) -> SparkSession:
        return self.session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop Spark, and wait until Java has ended."""
        with suppress(Exception):  # Java may have ended already
            self.session.stop()
        self._wait_for_java()

    def _wait_for_java(self) -> None:
        if self._java.stdin is not None:
            self._java.stdin.close()  # at the end of its input Spark's Java ends
        try:
            self._java.wait(_EXIT_TIMEOUT)
        except TimeoutExpired:
            self._java.kill()
            self._java.wait()
        # Not earlier: while Java runs, this would wait for a connection that waits for Java.
        with suppress(Exception):
            self._gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        if self._archive is not None:
            self._archive.keep()


class _ClassArchive:
    """Java's archive of the classes that Spark loads: used if there is one, else made at the end of this run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._made: Path | None = None

    @classmethod
    def of(cls, java: Java) -> _ClassArchive | None:
        """The archive for this Java and Spark; None if the cache cannot be written, or its path cannot be an option."""
        spark_home = Path(pyspark.__file__).parent
        key = hashlib.sha256(f"{java.home}\n{java.text}\n{spark_home}\n{pyspark.__version__}".encode()).hexdigest()[:16]
        try:
            base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
            directory = Path(base) / "stomp-gateway"
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # there is no home directory
            return None
        # Spark splits Java's options at white space, and treats quotes in its own way.
        if not os.access(directory, os.W_OK) or re.search(r"[\s\"'\\]", str(directory)):
            return None
        _remove_leftovers(directory)
        return cls(directory / f"spark-{key}.jsa")

    def options(self) -> list[str]:
        """The options that make Java use the archive, or make it."""
        if self._file.exists():
            return [f"-XX:SharedArchiveFile={self._file}", "-Xshare:auto", "-Xlog:cds=off"]
        if self._made is None:
            self._made = self._file.with_suffix(f".{os.getpid()}.part")
        return [f"-XX:ArchiveClassesAtExit={self._made}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def keep(self) -> None:
        """Keep the archive that was made; call it after Java has ended."""
        if self._made is not None:
            with suppress(OSError):
                self._made.replace(self._file)
            self._made = None


def _remove_leftovers(directory: Path) -> None:
    """Remove the unfinished archives, 190 MB each, of runs that were killed."""
    for path in directory.glob("spark-*.part"):
        process = path.name.split(".")[-2]
        if process.isdigit() and not _is_running(int(process)):
            with suppress(OSError):
                path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # of another user
    return True


@contextmanager
def no_root_logging() -> Iterator[None]:
    """Keep what py4j logs to the root logger off the terminal, for a command.

    If the root logger has no handler, Python creates one for the terminal. Programs that use the pipeline as a library
    configure their own.
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
def _sigint_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGINT, which Spark replaces by its own."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _require_user_name() -> None:
    """Hadoop, with which Spark reads files, fails if the user has no name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise PipelineError(
            f"the user id {os.getuid()} has no name on this machine, and Spark does not start without one. Run as a "
            "user who is in /etc/passwd; in a container, add a line for this id to it."
        ) from None


def _silence_loggers() -> None:
    # What they log is raised as an exception as well; without a handler of their own it would go to the terminal.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        own = PySparkLogger.getLogger(name)  # has a handler for the terminal
        own.handlers[:] = [logging.NullHandler()]
        own.propagate = False
    for name in ("py4j", "pyspark", "PySparkLogger"):
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _configuration(options: SparkOptions, archive: _ClassArchive | None) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    conf.setAppName("stomp-gateway pipeline").setMaster(options.master)
    conf.set("spark.driver.memory", options.driver_memory)
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    conf.set("spark.sql.session.timeZone", "UTC")
    conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    conf.set("spark.sql.parquet.compression.codec", "zstd")
    conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    # Otherwise every task sorts its rows by day and level before it writes them.
    conf.set("spark.sql.maxConcurrentOutputFileWriters", "64")
    # The paths of a batch's segments are known; a Spark job that lists them costs more than it saves.
    conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "10000")
    conf.set("spark.sql.sources.ignoreMissingFiles", "false")
    conf.set("spark.sql.streaming.numRecentProgressUpdates", "1")
    if options.is_local:
        _configure_local(conf, options, archive)
    return conf


def _configure_local(conf: SparkConf, options: SparkOptions, archive: _ClassArchive | None) -> None:
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    conf.set("spark.sql.shuffle.partitions", str(max(2, min(cores(options.master), 32))))
    # One task per core instead of one per 128 MB, and no extra weight for small segments.
    conf.set("spark.sql.files.maxPartitionBytes", "1g").set("spark.sql.files.openCostInBytes", "65536")
    java_options = ["-XX:+UseSerialGC" if cores(options.master) <= 2 else "-XX:+UseParallelGC"]  # noqa: PLR2004
    if options.short_run:
        java_options.append(_FIRST_COMPILER_ONLY)
    if archive is not None:
        java_options += archive.options()
    conf.set("spark.driver.extraJavaOptions", " ".join(java_options))


def cores(master: str) -> int:
    """How many tasks a local master runs at the same time."""
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
    """Set the environment that Spark's Java inherits: this Java, this Python's Spark, no options of other programs."""
    changed = {"JAVA_HOME": str(java.home), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    if "SPARK_LOCAL_DIRS" not in os.environ:
        changed["SPARK_LOCAL_DIRS"] = tempfile.gettempdir()
    removed = ("PYSPARK_SUBMIT_ARGS", "SPARK_TESTING", "PYSPARK_GATEWAY_PORT")
    before = {name: os.environ.get(name) for name in (*changed, *removed)}
    os.environ.update(changed)
    for name in removed:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def explained(lake: ParquetLake) -> Iterator[None]:
    """Turn an OSError, or any error of Spark and Java, into a PipelineError that says what to do."""
    try:
        yield
    except (OSError, PySparkException, Py4JError) as error:
        raise PipelineError(_sentence(error, lake)) from error


def _sentence(error: Exception, lake: ParquetLake) -> str:
    text = f"{error} {getattr(error, 'java_exception', '')}"
    if any(words in text for words in _DISK_FULL):
        return (
            f"no space is left for the lake {lake.root}. Make room and run the same command again: it goes on where "
            "this one ended, and nothing is counted twice."
        )
    if isinstance(error, PermissionError) or "Permission denied" in text:
        where = getattr(error, "filename", None) or lake.root
        return f"no permission to write or read {where}. Run as a user with permission, or give another directory."
    missing = _MISSING_SEGMENT.search(text)
    if missing and ("FileNotFound" in text or "does not exist" in text or "PATH_NOT_FOUND" in text):
        return (
            f"the segment {missing[1]} was to be read and has been deleted. Put it back, or go on without its lines: "
            "--skip-missing."
        )
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or lake.root}."
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"Spark ended with: {first[:300]}. All that it said is in {lake.logs / 'spark.log'}."
