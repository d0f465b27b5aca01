"""An ingest on a Spark cluster that loses a worker in the middle."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deploy.local.child import Child
from deploy.local.errors import LocalError
from deploy.local.spark_cluster import SparkCluster

_POLL_INTERVAL: Final = 0.01
_UNDER_WAY: Final = "data/*/_temporary/0/_temporary/attempt_*"
"""What a task writes until it is done. A worker has one core, so two of them are of two workers."""


def ingest_with_a_kill(
    cluster: SparkCluster,
    arguments: Sequence[str],
    lake: Path,
    log: Path | None,
    say: Callable[[str], None],
    *,
    command: str = "ingest",
    table: str = "events",
) -> int:
    """Run `pipeline ingest`, or another command, and kill a worker as soon as all workers write into a table.

    Args:
        cluster: with two workers or more.
        arguments: of the command, without those about Spark.
        lake: the directory that the ingest writes into.
        log: gets the output; None: that of this process.
        say: takes a line about the kill.
        command: of `pipeline`.
        table: into which it writes.

    Returns:
        The exit code.

    Raises:
        LocalError: it ended before its workers wrote at the same time, so none was killed.
    """
    program = [sys.executable, "-m", "gateway", "pipeline", command, *arguments, *cluster.arguments]
    with Child(program, log=log) as ingest:
        while len(list((lake / table).glob(_UNDER_WAY))) < len(cluster.workers):
            status = ingest.wait(_POLL_INTERVAL)
            if status is not None:
                raise LocalError(f"The {command} ended with {status}, before all workers wrote at the same time.")
        victim = cluster.workers[-1]
        victim.kill()
        say(f"killed worker {len(cluster.workers)} (process {victim.pid}) and its executor while all wrote {table}")
        status = ingest.wait()
    assert status is not None  # noqa: S101 - without a time limit it is known
    return status
