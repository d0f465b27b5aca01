"""The demonstration: from traffic to a report, with a broker and a gateway of its own.

Exit codes: 0 all went well and all counts agree, 1 something did not, 130 interrupted.
"""

import argparse
import asyncio
import contextlib
import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import quote

from deploy.demo import agreement, shop, site, traffic
from deploy.demo.client import ClientFactory
from deploy.demo.cluster_ingest import ingest_with_a_kill
from deploy.demo.tally import Tally
from deploy.local.broker import VAR, Broker, Source, running
from deploy.local.errors import LocalError
from deploy.local.node import shown
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.spark_cluster import spark_cluster

_OK, _FAILED, _INTERRUPTED = 0, 1, 130
_SOURCES: Final[tuple[Source, ...]] = ("installed", "debian", "container")  # it creates users: never in a given broker
_IDLE_AFTER, _ABANDONED_AFTER = "5s", "20s"
_STEPS: Final = 8

_CLOSING_TEXT = """
The report      {report}
The lake        {lake}   Delta Lake, one directory to a table; docs/pipeline.md explains each
The journal     {journal}   JSON, one line to an event

To look around:

{command} pipeline sql --lake {lake} "select vhost, destination, sum(sent) as sent,
  sum(delivered) as delivered, sum(acked) as acked from dest_hour group by vhost, destination order by sent desc"
{command} pipeline sql --lake {lake} "select login, destination, verdict, days_idle from durable_subs"
{command} pipeline sql --lake {lake} "select destination, count(*), cast(min(body) as varchar) from messages group by 1"

To see the journal as people do:  {command} journal --help
The report as a PDF, where Chromium is (Debian: apt install chromium; the tests that look at the report need it, too):
chromium --headless --no-sandbox --print-to-pdf={pdf} {report}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration.

    Args:
        arguments: without the program's name; the process's own when absent.

    Returns:
        The exit code, as the module describes.
    """
    parser = argparse.ArgumentParser(
        prog="python -m deploy.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--directory", type=Path, default=VAR / "demo", help="for all that it writes, emptied before (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=16, help="of traffic, up to eight seconds each (%(default)s)")
    parser.add_argument("--size", type=int, default=1, help="of a round, in 13,000 frames (%(default)s)")
    parser.add_argument(
        "--cluster", action="store_true", help="ingest on a Spark cluster of two workers, and kill one in the middle"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.size < 1:
        parser.error("--rounds and --size are 1 or more")
    _interrupt_by_signals()
    try:
        with _owned(options.directory.absolute()) as directory:
            return _demonstrate(directory, options.rounds, options.size, cluster=options.cluster)
    except LocalError as error:
        print(f"demo: {error}", file=sys.stderr, flush=True)
        return _FAILED
    except KeyboardInterrupt:
        say("Stopped; nothing of it runs any more.")
        return _INTERRUPTED


def say(line: str) -> None:
    """Print a line at once. A closed terminal is not an error."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _interrupt_by_signals() -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)  # ignore further signals: the clean-up has its own time limits
        raise KeyboardInterrupt

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, interrupt)


@contextlib.contextmanager
def _owned(directory: Path) -> Iterator[Path]:
    """Remove what an earlier demonstration left in the directory, and lock it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LocalError(f"Another demonstration runs in {shown(directory)}: wait for its end.") from None
            for name in ("journal", "lake", "spark"):
                shutil.rmtree(directory / name, ignore_errors=True)
            for name in ("report.html", "gateway.log", "replay.log"):
                (directory / name).unlink(missing_ok=True)
            yield directory
    except OSError as error:
        raise LocalError(f"Cannot write {error.filename}: {error.strerror}; check who owns it.") from error


def _demonstrate(directory: Path, rounds: int, size: int, *, cluster: bool) -> int:
    began = time.monotonic()
    journal, lake, report = directory / "journal", directory / "lake", directory / "report.html"
    tallies, replayed = _traffic(directory, rounds, size)

    with _step(4, "What the journal holds: stomp-gateway journal stat"):
        _run("journal", "stat", str(journal))
    with _step(5, "Journal to tables, exactly once: stomp-gateway pipeline ingest (Spark takes a while to start)"):
        say(
            f"  Here a durable subscription counts as idle after {_IDLE_AFTER} and as abandoned after "
            f"{_ABANDONED_AFTER}, since the\n  demonstration lasts minutes. Otherwise it is a day, and seven."
        )
        ages = ("--idle-after", _IDLE_AFTER, "--abandoned-after", _ABANDONED_AFTER)
        what = ("--journal", str(journal), "--lake", str(lake), "--once", *ages)
        if cluster:
            _ingest_on_cluster(directory / "spark", what, lake)
        else:
            _run("pipeline", "ingest", *what)
    with _step(6, "Is every line of the journal in the lake, once? stomp-gateway pipeline check"):
        _run("pipeline", "check", "--lake", str(lake), "--journal", str(journal))
    with _step(7, "Tables to one HTML file: stomp-gateway pipeline report"):
        _run("pipeline", "report", "--lake", str(lake), "-o", str(report))
    with _step(8, "Have clients, journal and lake counted the same?"):
        agreed = _agreement(tallies, journal, lake) & _replay_agreement(lake, replayed)
    say(f"\n{'All counts agree' if agreed else 'COUNTS DIFFER'}; everything took {time.monotonic() - began:.0f} s.")
    words = _CLOSING_TEXT.format(
        report=shown(report),
        pdf=shown(report.with_suffix(".pdf")),
        lake=shown(lake),
        journal=shown(journal),
        command=shown(Path(sys.executable).parent / "stomp-gateway"),
    )
    say(words)
    return _OK if agreed else _FAILED


def _traffic(directory: Path, rounds: int, size: int) -> tuple[Mapping[str, Tally], int]:
    """What the clients counted, and how many messages were replayed."""
    with contextlib.ExitStack() as running_things:
        with _step(1, "A broker, its users, and a gateway"):
            broker = running_things.enter_context(
                running(order=_SOURCES, plugins=["rabbitmq_management"], say=_indented)
            )
            [port] = free_ports(1)
            config = directory / "gateway.yaml"
            clients = ClientFactory((LOOPBACK, port), site.prepare_broker(broker))
            site.write_configuration(config, broker, port, directory / "journal")
            serving = running_things.enter_context(contextlib.ExitStack())
            serving.enter_context(site.gateway(config, port, directory / "gateway.log"))
            say(f"  STOMP on {LOOPBACK}:{port}, configuration in {shown(config)}, {broker.description}")
        with _step(2, "Traffic: two virtual hosts, nine users, every kind of destination, and every mistake"):
            asyncio.run(traffic.drive(clients, rounds, size, say))
            say("  Stopping the gateway in good order (SIGTERM), which closes its journal")
            serving.close()
        with _step(3, "The messages of a topic to a table, and again to a queue: pipeline archive, pipeline replay"):
            replayed = _archive_and_replay(directory, broker, port, clients.passcode)
            running_things.close()
    return clients.tallies, replayed


def _archive_and_replay(directory: Path, broker: Broker, port: int, passcode: str) -> int:
    """Archive one topic's messages, and send them to a queue, through a gateway that writes no journal.

    Returns how many messages the queue has then.
    """
    lake, host = str(directory / "lake"), quote(shop.HOST, safe="")
    amqp = f"{broker.amqp_url.rstrip('/')}/{host}"
    _run("pipeline", "archive", "--from", amqp, "--stream", site.ARCHIVE, "--lake", lake)
    config = directory / "replay.yaml"
    site.write_configuration(config, broker, port, None)
    secret = directory / "replay.passcode"
    secret.write_text(passcode)
    with site.gateway(config, port, directory / "replay.log"):
        where = f"destination like '{site.ARCHIVED}%'"
        what = ("--lake", lake, "--where", where, "--destination", site.REPLAYED)
        _run("pipeline", "replay", *what, "--dry-run")
        to = ("--to", f"stomp://{LOOPBACK}:{port}/{host}", "--login", next(iter(shop.USERS)))
        _run("pipeline", "replay", *what, *to, "--passcode-file", str(secret))
    secret.unlink()
    found = broker.ctl("list_queues", "-p", shop.HOST, "name", "messages", "--silent").split()
    replayed = int(found[found.index(site.REPLAYED.removeprefix("/queue/")) + 1])
    say(f"  {site.REPLAYED} has {replayed:,} messages")
    return replayed


def _ingest_on_cluster(directory: Path, arguments: Sequence[str], lake: Path) -> None:
    say("  Starting Spark's standalone master and two workers, each a process of its own with one core")
    with spark_cluster(directory) as cluster:
        if status := ingest_with_a_kill(cluster, arguments, lake, None, _indented):
            raise LocalError(f"The ingest on the cluster ended with {status}; what it said is above.")
        say(f"  {cluster.alive()} worker is left; what the others said is in {shown(directory)}")


def _agreement(tallies: Mapping[str, Tally], journal: Path, lake: Path) -> bool:
    rows = agreement.compare(tallies, journal, lake)
    say(agreement.HEADING)
    for row in rows:
        say(str(row))
    return all(row.agrees for row in rows)


def _replay_agreement(lake: Path, replayed: int) -> bool:
    sent, archived = agreement.sent_and_archived(lake, site.ARCHIVED)
    say(f"\n  {site.ARCHIVED}*: {sent:,} sent by the journal, {archived:,} archived, {replayed:,} replayed")
    return sent == archived == replayed


@contextlib.contextmanager
def _step(number: int, what: str) -> Iterator[None]:
    say(f"\n== {number}/{_STEPS} {what}")
    began = time.monotonic()
    yield
    say(f"   took {time.monotonic() - began:.1f} s")


def _indented(line: str) -> None:
    say(f"  {line}")


def _run(*arguments: str) -> None:
    if status := site.command(arguments):
        raise LocalError(f"`stomp-gateway {' '.join(arguments)}` ended with {status}; what it said is above.")


if __name__ == "__main__":
    sys.exit(main())
