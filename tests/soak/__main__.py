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
from pathlib import Path
from typing import Any, Final

from deploy.local.broker import PRIVATE, VAR, Broker, running
from deploy.local.ports import LOOPBACK, free_ports
from tests.bench.environment import raise_descriptor_limit
from tests.soak.behaviour import done_per_second
from tests.soak.samples import Latency, Outage, Point, levels, percentile, trend
from tests.soak.verdict import LONG, Observations, Plan, findings, unexplained
from tests.support.certificates import Authority
from tests.support.gateway import GatewayProcess, configuration, listening, upstream
from tests.support.long_run import FOUND, SUCCESS, status_of

_PROCESSES: Final = 2
_LOOK_EVERY: Final = 5.0
_PROGRESS_EVERY: Final = 30.0
_LAST_REPORT_WITHIN: Final = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 if something grew or went wrong."""
    options = _parser().parse_args(arguments)
    raise_descriptor_limit()
    return status_of(lambda: asyncio.run(_soak(options)))


async def _soak(options: argparse.Namespace) -> int:
    seconds = options.minutes * 60
    seen = Observations(time.time())
    plan = Plan(
        seconds, options.sessions, options.ride_through not in ("0", "none"), _parts(seconds) - 1,
        done_per_second(options.sessions),
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
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
        seen.begun = time.time()
        loads = [stack.enter_context(_load(options, ports, authority, seen.begun, n)) for n in range(_PROCESSES)]
        reading = [asyncio.create_task(_read(load, n, seen)) for n, load in enumerate(loads)]
        watching = [asyncio.create_task(_watch(gateway, seen)), asyncio.create_task(_restart(broker, seen, seconds))]
        _ = await asyncio.wait([*watching, *reading], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in (*watching, *reading):
            if task.done():
                task.result()
        for task in watching:
            _ = task.cancel()
        for load in loads:
            assert load.stdin is not None
            load.stdin.close()
        async with asyncio.timeout(_LAST_REPORT_WITHIN):
            _ = await asyncio.gather(*reading)
        seen.read_log(gateway.log.read_text())
        (VAR / "soak.log").write_text(gateway.log.read_text())
    print("\n".join(_table(options, seen, plan)))
    found = findings(seen, plan)
    print("\n".join([f"NOT FLAT: {finding}" for finding in found]) if found else "all is flat and well")
    return FOUND if found else SUCCESS


def _document(broker: Broker, authority: Authority, folder: Path, ride_through: str) -> dict[str, Any]:
    certificate, key = authority.sign(folder, "gateway")
    riding = {} if ride_through == "none" else {"ride_through": ride_through}
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    tcp, secure, websocket = (f"{LOOPBACK}:{port}" for port in free_ports(3))
    listeners: list[dict[str, Any]] = [{"tcp": tcp}, {"tcp": secure, "tls": tls}, {"websocket": websocket}]
    return configuration(
        broker.amqp_url,
        {"journal": {"level": "session"}},
        listeners=[{"login_timeout": "60s", **each} for each in listeners],  # so that who comes meanwhile waits, too
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


async def _read(load: subprocess.Popen[str], number: int, seen: Observations) -> None:
    """Take the reports of a load process, until the last one."""
    assert load.stdout is not None
    while line := await asyncio.to_thread(load.stdout.readline):
        report = json.loads(line)
        seen.latencies += [Latency(*each) for each in report["latencies"]]
        seen.errors += [(at, text) for at, text in report["errors"]]
        seen.counts.update(report["counts"])
        seen.there[number] = report["there"]
        if "missing" in report:
            seen.missing[number] = report["missing"]
            return
    raise RuntimeError("a load process has ended")


async def _watch(gateway: GatewayProcess, seen: Observations) -> None:
    told = 0.0
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        seen.memory.append(Point(seen.now(), gateway.memory / (1 << 20)))
        if seen.now() - told >= _PROGRESS_EVERY:
            told = seen.now()
            recent = [each.seconds * 1000 for each in seen.latencies if each.at > told - _PROGRESS_EVERY] or [0.0]
            print(
                f"{told:5.0f} s: {seen.there.total()} sessions, {sum(seen.counts.values())} done, "
                f"{seen.memory[-1].value:.0f} MiB, p50 {percentile(recent, 0.5):.1f} ms, "
                f"p99 {percentile(recent, 0.99):.1f} ms, errors: {_listed(Counter(text for _, text in seen.errors))}",
                flush=True,
            )


def _parts(seconds: float) -> int:
    return 4 if seconds >= LONG else 2


async def _restart(broker: Broker, seen: Observations, seconds: float) -> None:
    """Restart the broker at each quarter, by SIGKILL and in good order in turns; in a short soak once."""
    parts = _parts(seconds)
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


def _table(options: argparse.Namespace, seen: Observations, plan: Plan) -> Iterator[str]:
    away = ", ".join(f"{outage.how} {outage.ended - outage.begun:.0f} s" for outage in seen.outages)
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(seen.counts.items()))
    explained = Counter(text for _, text in seen.errors) - unexplained(seen, plan)
    yield f"| {options.minutes:g} minutes, {options.sessions:,} sessions over TCP, TLS and WebSocket | |"
    yield "|---|--:|"
    yield f"| restarts of the broker, and how long it was away | {away} |"
    yield f"| done | {counts} |"
    yield f"| messages with a receipt that were not delivered | {sum(map(len, seen.missing.values()))} |"
    curves = (("memory", "MiB", seen.warm_memory()), ("p50", "ms", seen.warm_latency(0.5)))
    for name, unit, parts in (*curves, ("p99", "ms", seen.warm_latency(0.99))):
        between = ", ".join(f"{level:.1f}" for level in levels(parts))
        yield f"| {name} between restarts (medians), {unit} | {between} |"
        if (found := trend(parts)) is not None:
            values = f"{found.slope:+.1f} ({found.at_most:+.1f})"
            yield f"| slope of {name}, {unit} per hour (with a confidence of 95 % at most) | {values} |"
    yield f"| explained by the restarts | {_listed(explained)} |"
    yield f"| sessions that ended, and other errors that nobody asked for | {_listed(unexplained(seen, plan))} |"
    yield f"| warnings and errors in the log that no restart explains | {_listed(seen.unasked_lines())} |"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} x {what}" for what, count in counts.most_common()) or "0"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long; 20 without")
    parser.add_argument("--sessions", type=int, default=2000, help="how many; 2000 without")
    parser.add_argument("--ride-through", default="60s", metavar="TIME", help="the gateway's key")
    return parser


if __name__ == "__main__":
    sys.exit(main())
