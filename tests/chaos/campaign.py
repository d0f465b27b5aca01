"""Many runs with the same servers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from pprint import pformat
from typing import Final, Self

from deploy.local.broker import VAR
from deploy.local.node import PrivateNode
from tests.chaos.history import Promise
from tests.chaos.remains import Inspector, prepare
from tests.chaos.run import RunReport, perform
from tests.chaos.schedule import Schedule
from tests.chaos.servers import Servers

RIDE_THROUGH: Final = "60s"
"""The value of ``upstream.ride_through``; ``none`` leaves the key out."""

RIDE_THROUGH_IN_A_CLUSTER: Final = "150s"
"""Longer than a node stands still."""


class Campaign:
    """Servers, and the inspectors that remember how they were at first.

    Args:
        servers: of all runs.
        promise: what the gateways are configured to do.
    """

    def __init__(self, servers: Servers, promise: Promise) -> None:
        self._servers = servers
        self._promise = promise
        self._inspectors: dict[str, Inspector] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def begun(cls, ride_through: str | None = None, *, is_cluster: bool = False) -> AsyncIterator[Self]:
        """Start the servers, and stop them at the end."""
        ride_through = ride_through or (RIDE_THROUGH_IN_A_CLUSTER if is_cluster else RIDE_THROUGH)
        riding = None if ride_through == "none" else ride_through
        async with Servers.started(riding, is_cluster=is_cluster) as servers:
            await prepare(servers)
            release = int((await asyncio.to_thread(servers.broker.ctl, "version")).partition(".")[0])
            yield cls(servers, Promise(riding not in (None, "0"), is_cluster, release))

    async def perform(self, schedule: Schedule) -> RunReport:
        """Carry out a schedule. What explains its findings is kept in ``var/chaos``."""
        report = await perform(schedule, self._servers, self._inspectors, self._promise)
        if report.findings:
            _keep(report, self._servers)
        return report

    def remarks(self) -> list[str]:
        """What became of the memory of each gateway, and what the cluster could not do by itself."""
        cluster = self._servers.cluster
        restarts = 0 if cluster is None else cluster.restarts
        return [
            *(inspector.memory() for inspector in self._inspectors.values()),
            *([f"nodes restarted because RabbitMQ did not end a partition: {restarts}"] if restarts else []),
        ]


def folder(seed: int) -> Path:
    """Where the files of a run are kept."""
    return VAR / "chaos" / f"seed-{seed}"


def _keep(report: RunReport, servers: Servers) -> None:
    place = folder(report.schedule.seed)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "findings.txt").write_text("\n".join(report.findings) + "\n")
    (place / "schedule.txt").write_text(pformat(report.schedule, width=120) + "\n")
    (place / "gateway.log").write_text(report.log)
    (place / "sessions.json").write_text(report.sessions)
    report.recording.save(place / "recording.jsonl")
    for number, node in enumerate(servers.nodes):
        if isinstance(node, PrivateNode):
            _ = shutil.copy(node.log, place / f"node-{number}.log")
