"""The command line of the benchmark."""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.environment import DEFAULT_NAP, Environment
from tests.bench.report import Circumstances, Outcome, as_text, write_json
from tests.bench.rounds import measure
from tests.bench.startup import StartOptions, started_environment
from tests.bench.targets import DEFAULT_ROWS, ROWS, Row
from tests.support.long_run import NOT_STARTED, SUCCESS, status_of

_INCOMPLETE, _MISSED = 1, 3

_DESCRIPTION = """\
Compares two STOMP servers on one RabbitMQ, in alternation: RabbitMQ's own plugin and the gateway. The third side,
limit, is a client that speaks AMQP to the broker itself.

Without options a private broker with the plugin and a gateway are started, measured and stopped. The report goes to
standard output, the progress to standard error, and the same figures as JSON to a file."""

_EPILOGUE = """\
rows, their units, and the targets of the ratios gateway/plugin, of the figure and of the CPU time; a * is a default:
{rows}

exit status:
  0  everything asked for was measured
  1  a row failed or was not measured
  2  the command line is wrong, or a server could not be started or reached
  3  with --strict: a target was missed

examples:
  python -m tests.bench --rows send,rtt --rounds 5
  python -m tests.bench --broker-url amqp://guest:guest@127.0.0.1 --plugin 127.0.0.1:61613 --gateway 127.0.0.1:61614
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark as `arguments` (the process's own, if None) say; return the exit status."""
    options = _parser().parse_args(arguments)
    servers = StartOptions(options.broker_url, options.plugin, options.gateway, options.rabbitmqctl, options.nap / 1000)
    if servers.broker_url is None and (servers.plugin or servers.gateway or servers.rabbitmqctl):
        print(
            "--plugin, --gateway and --rabbitmqctl speak of a running broker: name it with --broker-url",
            file=sys.stderr,
        )
        return NOT_STARTED

    def measured() -> int:
        with started_environment(servers, _say) as environment:
            outcomes = _measure_and_report(environment, options)
        return _exit_status(outcomes, strict=options.strict)

    return status_of(measured)


def _measure_and_report(environment: Environment, options: argparse.Namespace) -> list[Outcome]:
    begun, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    version = environment.broker.version()
    outcomes = measure(environment, options.rows, options.rounds, options.scale, _say)
    circumstances = Circumstances(
        broker=version,
        rounds=options.rounds,
        scale=options.scale,
        started=started,
        seconds=round(time.monotonic() - begun, 1),
        client_nap_ms=options.nap,
    )
    print(as_text(outcomes, circumstances))
    write_json(options.json, outcomes, circumstances)
    _say(f"written to {options.json}")
    return outcomes


def _exit_status(outcomes: Sequence[Outcome], *, strict: bool) -> int:
    verdicts = {outcome.verdict for outcome in outcomes}
    if verdicts & {"failed", "not measured"}:
        return _INCOMPLETE
    verdicts |= {outcome.cpu_verdict for outcome in outcomes}
    verdicts |= {outcome.other_verdict(name) for outcome in outcomes for name in outcome.row.others}
    return _MISSED if strict and "missed" in verdicts else SUCCESS


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    rows = "\n".join(map(_row_line, ROWS.values()))
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=_DESCRIPTION,
        epilog=_EPILOGUE.format(rows=rows),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows", type=_rows, default=DEFAULT_ROWS, help="names, with commas between, or all (default: those with a *)"
    )
    parser.add_argument(
        "--rounds", type=_positive_integer, default=3, help="how often each row is measured (default: 3)"
    )
    parser.add_argument("--scale", type=_positive, default=1.0, help="factor on the number of messages (default: 1)")
    parser.add_argument(
        "--json", type=Path, default=Path("var/bench.json"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--broker-url", metavar="URL", help="AMQP URL of a running broker, with credentials")
    parser.add_argument(
        "--plugin", type=_place, metavar="HOST:PORT", help="its plugin; without, that side is not measured"
    )
    parser.add_argument(
        "--gateway", type=_place, metavar="HOST:PORT", help="a running gateway; without, one is started"
    )
    parser.add_argument("--rabbitmqctl", metavar="COMMAND", help="command line that runs rabbitmqctl on it (row idle)")
    parser.add_argument(
        "--nap",
        type=_not_negative,
        default=DEFAULT_NAP * 1000,
        metavar="MS",
        help="rest of the load client after small reads, in milliseconds; 0 reads eagerly (default: %(default)s)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a target is missed")
    return parser


def _row_line(row: Row) -> str:
    return f"{'*' if row.is_default else ' '} {row.name:20} {row.unit:16} {row.target!s:8} {row.cpu_target}".rstrip()


def _rows(text: str) -> list[Row]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if names == ["all"]:
        return list(ROWS.values())
    if unknown := [name for name in names if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return [ROWS[name] for name in names]


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _positive_integer(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number
