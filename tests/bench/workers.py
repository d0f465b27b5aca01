"""``python -m tests.bench.workers``: one gateway with 1, 2 and more workers, under TLS clients that keep them busy.

The load client and the broker need cores, too. On a machine with few of them, more workers cannot be faster than the
machine is. So each worker may have a part of a core only (`--cores`), which root can arrange: then the workers are the
limit, as they are where there are cores enough, and the rate shows what one more is worth. CPU time per operation is
measured beside it, without that limit.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from deploy.local.address import Address
from deploy.local.ports import LOOPBACK, free_ports
from tests.bench import processes
from tests.bench.cpu_limit import NoLimitError, limited
from tests.bench.environment import GATEWAY, TLS, Environment, Side, raise_descriptor_limit
from tests.bench.startup import VAR, StartError, StartOptions, start_gateway, started_environment
from tests.bench.wire import Account, RowError, Wire, pump
from tests.support.long_run import SUCCESS, status_of

_SENDERS = 32
"""Connections. The system spreads them by chance: of two workers the busier one gets 17 to 20 of them."""
_DESTINATION = "/topic/nobody-subscribes"
"""Messages cost the broker as little as they can, so that the gateway has the work."""
_STARTS_WITHIN = 30.0


@dataclass(frozen=True)
class Gang:
    """A gateway with workers; `pids` are those of the processes that serve clients."""

    side: Side
    root: int
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One measurement: messages, seconds, and the CPU seconds of each worker, and of all others."""

    messages: int
    seconds: float
    workers: tuple[float, ...]
    supervisor: float
    broker: float
    client: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cost(self) -> float:
        """Microseconds of CPU that a message costs the gateway."""
        return 1e6 * (sum(self.workers) + self.supervisor) / self.messages

    @property
    def busiest(self) -> float:
        """The share of the busiest worker in the work of all."""
        return max(self.workers) / sum(self.workers)

    @property
    def capacity(self) -> float:
        """Messages a second with a whole core for each worker: when the busiest has used up its own."""
        return self.messages / max(self.workers)


@dataclass
class Figures:
    """Those of a gateway with some workers."""

    memory: list[int] = field(default_factory=list)
    supervisor_memory: int = 0
    free: list[Run] = field(default_factory=list)
    bounded: list[Run] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments say, and print a table."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    raise_descriptor_limit()
    with started_environment(StartOptions(), _say) as environment, ExitStack() as stack:
        gangs = {count: _started(stack, environment, count) for count in options.workers}
        found = {count: Figures() for count in options.workers}
        for count, gang in gangs.items():
            _ = _run(environment, gang, options.messages // 10)
            found[count].memory = [processes.memory_bytes(pid) for pid in gang.pids]
            others = {gang.root} - set(gang.pids)
            found[count].supervisor_memory = sum(processes.memory_bytes(pid) for pid in others)
        complaint = ""
        for number in range(options.rounds):
            for count in options.workers if number % 2 == 0 else options.workers[::-1]:
                run = _run(environment, gangs[count], options.messages)
                found[count].free.append(run)
                try:
                    with _all_limited(gangs[count], options.cores):
                        bounded = _run(environment, gangs[count], round(2 * options.messages * options.cores))
                    found[count].bounded.append(bounded)
                except NoLimitError as error:
                    complaint = str(error)
                _say(f"round {number + 1}/{options.rounds}  {count} workers  {run.rate:8,.0f}/s  {run.cost:.1f} us")
        print("\n".join(_table(found, options.cores, complaint)))
    return SUCCESS


@contextmanager
def _all_limited(gang: Gang, cores: float) -> Iterator[None]:
    with ExitStack() as limits:
        for pid in gang.pids:
            limits.enter_context(limited(pid, cores))
        yield


def _started(stack: ExitStack, environment: Environment, workers: int) -> Gang:
    """Start a gateway with a TLS listener, and find its workers."""
    plain, port = free_ports(2)
    side = environment.sides[GATEWAY]
    tls = _listener_of(environment)
    url = Address.parse(environment.broker.url)
    keys = {"workers": workers, "admin": {"address": None}}
    listeners = [{"tcp": f"{LOOPBACK}:{port}", "tls": tls}]
    child = start_gateway(stack, url, plain, {"level": "off"}, f"workers-{workers}", listeners, keys)
    pids = _workers(child.pid, workers, VAR / f"workers-{workers}.log")
    _port, wire = side.others[TLS]
    account: Account = replace(side.account, host=LOOPBACK, port=port)
    return Gang(replace(side, account=account, wire=wire, pids=tuple({child.pid, *pids})), child.pid, pids)


def _listener_of(environment: Environment) -> dict[str, str]:
    assert environment.certificate is not None
    certificate, key = environment.certificate
    return {"cert_file": str(certificate), "key_file": str(key)}


def _workers(root: int, workers: int, log: Path) -> tuple[int, ...]:
    """The processes that serve clients, once all of them do."""
    if workers == 1:
        return (root,)
    deadline = time.monotonic() + _STARTS_WITHIN
    while "workers started" not in log.read_text():
        if time.monotonic() > deadline:
            raise StartError(f"The workers did not start; see {log}")
        time.sleep(0.05)
    return tuple(sorted(child.pid for child in psutil.Process(root).children()))


def _run(environment: Environment, gang: Gang, messages: int) -> Run:
    """Send from all connections at once; ends when each has the receipt of its last message."""
    each = max(messages // _SENDERS, 1)
    with ExitStack() as opened:
        wires: list[Wire] = [opened.enter_context(gang.side.open()) for _ in range(_SENDERS)]
        for wire in wires:
            wire.load_sends(_DESTINATION, each, receipt_on_last=True)
        pids = [*gang.pids, *({gang.root} - set(gang.pids)), *filter(None, [environment.broker.pid])]
        before, own, began = [processes.cpu_seconds(pid) for pid in pids], time.process_time(), time.perf_counter()
        pump(dict.fromkeys(wires, 1), nap=environment.nap)
        seconds, client = time.perf_counter() - began, time.process_time() - own
        used = [processes.cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
        for wire in wires:
            wire.require_last_receipt()
    count = len(gang.pids)
    supervisor = used[count] if gang.root not in gang.pids else 0.0
    broker = used[-1] if environment.broker.pid is not None else 0.0
    if not sum(used[:count]):
        raise RowError("the workers used no CPU time that could be measured: send more messages")
    return Run(each * _SENDERS, seconds, tuple(used[:count]), supervisor, broker, client)


def _table(found: dict[int, Figures], cores: float, complaint: str) -> Iterator[str]:
    mib = 1 << 20
    yield ""
    yield f"SEND over TLS, 256 bytes, {_SENDERS} connections, to a topic without subscribers; medians"
    yield ""
    yield "| workers | CPU us/message | broker us | client us | rate here | share of the busiest | rate, a core each |"
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    for count, figures in found.items():
        runs = figures.free
        cells = (
            f"{count}",
            f"{_middle(runs, lambda run: run.cost):.1f}",
            f"{_middle(runs, lambda run: 1e6 * run.broker / run.messages):.1f}",
            f"{_middle(runs, lambda run: 1e6 * run.client / run.messages):.1f}",
            f"{_middle(runs, lambda run: run.rate):,.0f}",
            f"{_middle(runs, lambda run: run.busiest):.2f}",
            f"{_middle(runs, lambda run: run.capacity):,.0f}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    bounded = {count: figures.bounded for count, figures in found.items() if figures.bounded}
    if bounded:
        yield f"The same, each worker with {cores:g} of a core at most, so that workers are the limit:"
        yield ""
        yield "| workers | messages/s | to that of the first line | share of the busiest |"
        yield "|--:|--:|--:|--:|"
        first = _middle(next(iter(bounded.values())), lambda run: run.rate)
        for count, runs in bounded.items():
            rate, busiest = _middle(runs, lambda run: run.rate), _middle(runs, lambda run: run.busiest)
            yield f"| {count} | {rate:,.0f} | {rate / first:.2f} | {busiest:.2f} |"
    else:
        yield f"Workers could not be limited to a part of a core ({complaint}), which needs root."
    yield ""
    yield "| workers | memory of each, MiB | supervisor, MiB | all, MiB |"
    yield "|--:|--:|--:|--:|"
    for count, figures in found.items():
        total = sum(figures.memory) + figures.supervisor_memory
        each = statistics.mean(figures.memory) / mib
        yield f"| {count} | {each:.0f} | {figures.supervisor_memory / mib:.0f} | {total / mib:.0f} |"
    yield ""
    yield "Memory after some thousand messages, without clients: the proportional set size; what is shared counts once."


def _middle(runs: Sequence[Run], figure: Callable[[Run], float]) -> float:
    return statistics.median(figure(run) for run in runs)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.workers", description=__doc__)
    parser.add_argument(
        "--workers", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2], metavar="N,N",
        help="how many workers; 1,2 without",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured; 3 without")
    parser.add_argument("--messages", type=int, default=160_000, help="in each measurement; 160000 without")
    parser.add_argument(
        "--cores", type=float, default=0.05, help="the part of a core that each worker may have; 0.05 without"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
