"""Spark's standalone master and workers as processes of this machine, on loopback.

They are in PySpark's package. A worker starts an executor for each application, as a process of its own.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from deploy.local.child import Child
from deploy.local.errors import LocalError
from deploy.local.java import find_java
from deploy.local.node import shown
from deploy.local.ports import LOOPBACK, free_ports

_START_TIMEOUT: Final = 90.0
"""Seconds until master and workers must be there."""
_QUICK_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For processes that end after minutes: Java's first compiler alone."""
_EXECUTOR_MEMORY: Final = "768m"
_WORKER_MEMORY: Final = "1g"


class SparkCluster:
    """A master and its workers, each with one core.

    Args:
        directory: for logs, and for the workers' files.
        master: the process.
        port: where it listens.
        web_port: where it tells about itself.
    """

    def __init__(self, directory: Path, master: Child, port: int, web_port: int) -> None:
        self._directory = directory
        self._master = master
        self._port = port
        self._web_port = web_port
        self.workers: list[Child] = []
        """The workers' processes. To `kill` one ends its executor, too."""

    @property
    def arguments(self) -> list[str]:
        """What `pipeline ingest` needs to run on this cluster."""
        conf = {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.extraJavaOptions": _QUICK_START,
            "spark.executor.extraJavaOptions": _QUICK_START,
            "spark.executor.memory": _EXECUTOR_MEMORY,
            # Without these two, Spark begins as soon as one executor is there, and counts its cores only.
            "spark.cores.max": str(len(self.workers)),
            "spark.scheduler.minRegisteredResourcesRatio": "1",
        }
        settings = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
        return ["--master", f"spark://{LOOPBACK}:{self._port}", *settings]

    def alive(self) -> int:
        """How many workers the master knows to be alive; 0 if it does not answer."""
        try:
            with contextlib.closing(HTTPConnection(LOOPBACK, self._web_port, timeout=5)) as connection:
                connection.request("GET", "/json/")
                return int(json.loads(connection.getresponse().read())["aliveworkers"])
        except (OSError, HTTPException, ValueError, KeyError):
            return 0

    def wait_until_ready(self) -> None:
        """Wait until all workers have registered; raise LocalError if they do not."""
        ends = time.monotonic() + _START_TIMEOUT
        while self.alive() < len(self.workers):
            ended = any(child.wait(0) is not None for child in (self._master, *self.workers))
            if ended or time.monotonic() > ends:
                raise LocalError(
                    f"Spark's master and workers did not start; their logs are in {shown(self._directory)}."
                )
            self._master.wait(0.1)


@contextlib.contextmanager
def spark_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Start a cluster, and end its processes afterwards.

    Raises LocalError if there is no Java or no PySpark, or if the processes do not start.
    """
    environment = _environment()
    program = f"{environment['SPARK_HOME']}/bin/spark-class"
    directory.mkdir(parents=True, exist_ok=True)
    port, web_port, *worker_ports = free_ports(2 + workers)
    with contextlib.ExitStack() as running:

        def started(name: str, *arguments: str) -> Child:
            child = Child([program, *arguments], env=environment, log=directory / f"{name}.log")
            return running.enter_context(child)

        where = ["--host", LOOPBACK, "--port"]
        main = "org.apache.spark.deploy.master.Master"
        cluster = SparkCluster(
            directory, started("master", main, *where, str(port), "--webui-port", str(web_port)), port, web_port
        )
        for number, worker_port in enumerate(worker_ports, start=1):
            place = directory / f"worker-{number}"
            cluster.workers.append(
                started(
                    place.name, "org.apache.spark.deploy.worker.Worker", *where, str(worker_port),
                    "--webui-port", "0", "--cores", "1", "--memory", _WORKER_MEMORY, "--work-dir", str(place),
                    f"spark://{LOOPBACK}:{port}",
                )
            )  # fmt: skip
        cluster.wait_until_ready()
        yield cluster


def _environment() -> dict[str, str]:
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise LocalError("PySpark is missing: `pip install 'stomp-gateway[pipeline]'`.")
    return os.environ | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(Path(spark.origin).parent),
        "SPARK_LOCAL_IP": LOOPBACK,  # for the web pages: Spark's own default is every address
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK_START,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # another port, for jobs that nobody here submits
    }
