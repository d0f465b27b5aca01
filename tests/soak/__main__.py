"""``python -m tests.soak``: many sessions for a long time, with restarts of the broker."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deploy.local.broker import PRIVATE, VAR, Broker, running
from deploy.local.ports import LOOPBACK, free_ports
from tests.bench.environment import raise_descriptor_limit
from tests.soak.samples import Latency, Outage, Point, curve, growth, percentile, slope
from tests.support.certificates import Authority
from tests.support.gateway import GatewayProcess, configuration, listening, upstream
from tests.support.long_run import FOUND, SUCCESS, status_of

_PROCESSES: Final = 2
_LOOK_EVERY: Final = 5.0
_PROGRESS_EVERY: Final = 30.0
_WARM_UP: Final = 45.0
"""Seconds until all sessions are there and have sent their first messages."""

_LONG: Final = 600.0
"""Seconds from which on a soak has several restarts of the broker."""

_MEMORY_MAY_GROW: Final = 16.0
"""MiB from the first half to the second."""
_P99_MAY_GROW: Final = 25.0
"""Milliseconds from the first half to the second."""


@dataclass
class _Observations:
    """What the soak has seen so far."""

    begun: float
    latencies: list[Latency] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    memory: list[Point] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    connected: dict[int, int] = field(default_factory=dict)

    def now(self) -> float:
        return time.time() - self.begun

    def unasked(self, ride_through: bool) -> list[tuple[float, str]]:
        """Errors that nothing explains. A broker that ends takes the messages of transient topics with it."""
        return [
            (at, text)
            for at, text in self.errors
            if not any(outage.covers(at) for outage in self.outages)
            or (ride_through and not text.startswith("a message to a topic"))
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 if something grew or went wrong."""
    options = _parser().parse_args(arguments)
    raise_descriptor_limit()
    return status_of(lambda: asyncio.run(_soak(options)))


async def _soak(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running(order=PRIVATE, say=print))
        _ = stack.callback(broker.kill)
        folder = Path(tempfile.mkdtemp(prefix="stomp-gateway-soak-"))
        _ = stack.callback(shutil.rmtree, folder, ignore_errors=True)
        authority = Authority.make(folder, "soak")
        gateway = GatewayProcess(
            _document(broker, authority, folder, options.ride_through), {"STATE_DIRECTORY": str(folder)}
        )
        _ = stack.callback(gateway.stop)
        ports = [address[1] for address in listening(gateway, 3)]
        seen = _Observations(time.time())
        loads = [stack.enter_context(_load(options, ports, authority, seen.begun, n)) for n in range(_PROCESSES)]
        tasks = [asyncio.create_task(_read(load, n, seen)) for n, load in enumerate(loads)]
        tasks.append(asyncio.create_task(_watch(gateway, seen)))
        restarting = asyncio.create_task(_restart(broker, seen, options.minutes * 60))
        _ = await asyncio.wait([restarting, *tasks], timeout=options.minutes * 60, return_when=asyncio.FIRST_EXCEPTION)
        for task in (restarting, *tasks):
            if task.done():
                task.result()
            _ = task.cancel()
        for load in loads:
            assert load.stdin is not None
            load.stdin.close()
        log = gateway.log.read_text()
    riding = options.ride_through not in ("0", "none")
    print("\n".join(_table(options, seen, log, riding)))
    (VAR / "soak.log").write_text(log)
    return SUCCESS if _is_flat(seen, log, riding) else FOUND


def _document(broker: Broker, authority: Authority, folder: Path, ride_through: str) -> dict[str, Any]:
    certificate, key = authority.sign(folder, "gateway")
    riding = {} if ride_through == "none" else {"ride_through": ride_through}
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    tcp, secure, websocket = (f"{LOOPBACK}:{port}" for port in free_ports(3))
    return configuration(
        broker.amqp_url,
        {"journal": {"level": "session"}},
        listeners=[{"tcp": tcp}, {"tcp": secure, "tls": tls}, {"websocket": websocket}],
        upstream=upstream((broker.host, broker.amqp_port), **riding),
    )


@contextlib.contextmanager
def _load(
    options: argparse.Namespace, ports: Sequence[int], authority: Authority, begun: float, number: int
) -> Iterator[subprocess.Popen[str]]:
    count = options.sessions // _PROCESSES
    command = [
        sys.executable, "-m", "tests.soak.load", "--ports", *map(str, ports), "--ca-file", str(authority.certificate),
        "--begun", str(begun), "--first", str(number * count), "--count", str(count),
    ]  # fmt: skip
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.terminate()
        _ = child.wait(20)


async def _read(load: subprocess.Popen[str], number: int, seen: _Observations) -> None:
    """Take the reports of a load process."""
    assert load.stdout is not None
    while line := await asyncio.to_thread(load.stdout.readline):
        report = json.loads(line)
        seen.latencies += [Latency(*each) for each in report["latencies"]]
        seen.errors += [(at, text) for at, text in report["errors"]]
        seen.counts.update(report["counts"])
        seen.connected[number] = report["connected"]
    raise RuntimeError("a load process has ended")


async def _watch(gateway: GatewayProcess, seen: _Observations) -> None:
    told = 0.0
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        seen.memory.append(Point(seen.now(), gateway.memory / (1 << 20)))
        if seen.now() - told >= _PROGRESS_EVERY:
            told = seen.now()
            recent = [each.seconds * 1000 for each in seen.latencies if each.at > told - _PROGRESS_EVERY] or [0.0]
            print(
                f"{told:5.0f} s: {sum(seen.connected.values())} sessions, {sum(seen.counts.values())} done, "
                f"{seen.memory[-1].value:.0f} MiB, p50 {percentile(recent, 0.5):.1f} ms, "
                f"p99 {percentile(recent, 0.99):.1f} ms, {len(seen.errors)} errors",
                flush=True,
            )


async def _restart(broker: Broker, seen: _Observations, seconds: float) -> None:
    """Restart the broker at each quarter, in good order and by SIGKILL in turns; in a short soak once."""
    parts = 4 if seconds >= _LONG else 2
    for part in range(1, parts):
        await asyncio.sleep(part * seconds / parts - seen.now())
        how = "SIGKILL" if part % 2 else "restart"
        begun = seen.now()
        print(f"{begun:5.0f} s: the broker's {how}", flush=True)
        if how == "SIGKILL":
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        else:
            _ = await asyncio.to_thread(broker.ctl, "stop_app")
            _ = await asyncio.to_thread(broker.ctl, "start_app")
        seen.outages.append(Outage(begun, seen.now(), how))


def _flat_memory(seen: _Observations) -> list[Point]:
    return [
        point
        for point in seen.memory
        if point.at > _WARM_UP and not any(outage.covers(point.at) for outage in seen.outages)
    ]


def _flat_latency(seen: _Observations, share: float) -> list[Point]:
    return curve([each for each in seen.latencies if each.at > _WARM_UP], share, seen.outages)


def _log_lines(log: str) -> Counter[str]:
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return Counter(record["event"] for record in records if record.get("level") in ("warning", "error"))


def _is_flat(seen: _Observations, log: str, riding: bool) -> bool:
    memory, p99 = _flat_memory(seen), _flat_latency(seen, 0.99)
    if not memory or not p99:
        print("soak: too little was seen to tell", file=sys.stderr)
        return False
    return (
        growth(memory) <= _MEMORY_MAY_GROW
        and growth(p99) <= _P99_MAY_GROW
        and not seen.unasked(riding)
        and '"level": "error"' not in log
    )


def _table(options: argparse.Namespace, seen: _Observations, log: str, riding: bool) -> Iterator[str]:
    memory, median, p99 = _flat_memory(seen), _flat_latency(seen, 0.5), _flat_latency(seen, 0.99)
    away = ", ".join(f"{outage.how} {outage.ended - outage.begun:.0f} s" for outage in seen.outages)
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(seen.counts.items()))
    unasked = Counter(text for _, text in seen.unasked(riding))
    yield f"| {options.minutes:g} minutes, {options.sessions:,} sessions over TCP, TLS and WebSocket | |"
    yield "|---|--:|"
    yield f"| restarts of the broker, and how long it was away | {away} |"
    yield f"| done | {counts} |"
    for name, unit, points in (("memory", "MiB", memory), ("p50", "ms", median), ("p99", "ms", p99)):
        if points:
            values = f"{points[0].value:.1f}, {points[-1].value:.1f}; {slope(points):+.1f}"
            yield f"| {name} at first and at last, {unit}; slope, {unit} per hour | {values} |"
    yield f"| sessions that ended, or lost a message of a transient topic, around the restarts | {len(seen.errors)} |"
    yield f"| errors that nobody asked for | {dict(unasked) or 0} |"
    yield f"| warnings and errors in the log | {dict(_log_lines(log)) or 0} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long; 20 without")
    parser.add_argument("--sessions", type=int, default=2000, help="how many; 2000 without")
    parser.add_argument("--ride-through", default="60s", metavar="TIME", help="the gateway's key")
    return parser


if __name__ == "__main__":
    sys.exit(main())
