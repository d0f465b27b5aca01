"""`stomp-gateway parity`: ask RabbitMQ's STOMP plugin and the gateway the same, and say where they differ."""

import asyncio
import logging
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aiormq.exceptions import AMQPError

from gateway.errors import UsageError
from gateway.parity.broker import AmqpBroker
from gateway.parity.contest import Contest
from gateway.parity.greeting import greet, meet
from gateway.parity.library import conversations, departures
from gateway.parity.release import Release
from gateway.parity.report import Report
from gateway.parity.request import Request, requested
from gateway.parity.script import Conversation, Side
from gateway.parity.shelter import until_terminated
from gateway.parity.verdict import Outcome
from gateway.parity.wire import Address

_CONNECT_WITHIN = 10.0  # seconds


def list_conversations(only: str | None) -> None:
    """Print the name, setup and title of each conversation that `only` chooses. Raises UsageError where none is."""
    for each in _chosen(only):
        print(f"{each.name:<36}  {each.setup:<15}  {'departure' if each.departures else '':<9}  {each.title}")


async def compare(options: Namespace) -> bool:
    """Play the conversations on both servers and print what comes of it.

    Args:
        options: of the command line, see `requested`; also `only` and `verbose`.

    Returns:
        True when something was played, and no rule is different.

    Raises:
        UsageError: the command line cannot be meant so.
        GreetingError: a server cannot be asked.
        TerminatedError: SIGTERM came; what was made is removed.
        BrokenPipeError: nobody reads any more what is printed; what was made is removed.
    """
    request = requested(options)
    chosen = _chosen(options.only)
    # A broker that hangs up is told in the report; the library's own words about it would come in between.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    leftovers: set[str] = set()
    try:
        return await until_terminated(_compare(request, chosen, leftovers, options))
    finally:
        if leftovers:
            print(f"stomp-gateway: left in the broker: {', '.join(sorted(leftovers))}", file=sys.stderr)


async def _compare(request: Request, chosen: Sequence[Conversation], leftovers: set[str], options: Namespace) -> bool:
    plugin = await greet("plugin", request.plugin, request.identity)
    gateway = await greet("gateway", request.gateway, request.identity)
    print(f"plugin   {options.plugin}  {plugin}\ngateway  {options.gateway}  {gateway}")
    async with AsyncExitStack() as stack:
        broker = await _broker(request, stack)
        if broker:
            servers: dict[Side, Address] = {"plugin": request.plugin, "gateway": request.gateway}
            await meet(servers, broker, request.amqp_place, request.identity, leftovers)
        report = _report(len(chosen), verbose=options.verbose)
        contest = Contest(
            request.plugin,
            request.gateway,
            broker,
            # A plugin that hides its name is of the same release as its broker.
            Release.told_by(plugin) or (broker.release if broker else None),
            request.identity,
            setups=request.setups,
            jobs=request.jobs,
            leftovers=leftovers,
        )
        started = time.monotonic()
        await contest.run(chosen, report.tell, report.count)
        report.conclude(time.monotonic() - started, _warnings(report, broker))
    return bool(report.played) and not report.outcomes[Outcome.DIFFERENT]


def _warnings(report: Report, broker: AmqpBroker | None) -> list[str]:
    warnings = []
    if not broker:
        warnings.append(
            "the broker cannot be reached over AMQP (--amqp): whatever needs that is skipped, and whether "
            "both servers have the same broker is not known"
        )
    if not report.played:
        warnings.append("nothing was played")
    return warnings


def _chosen(only: str | None) -> list[Conversation]:
    chosen = conversations(only)
    if not chosen:
        raise UsageError(f"--only {only}: no conversation has such a name; --list shows them all")
    return chosen


def _report(total: int, *, verbose: bool) -> Report:
    return Report(
        sys.stdout,
        sys.stderr if sys.stderr.isatty() else None,
        width=shutil.get_terminal_size().columns,
        departures=departures(),
        total=total,
        verbose=verbose,
    )


async def _broker(request: Request, stack: AsyncExitStack) -> AmqpBroker | None:
    """Connect to the broker until the stack is left; where that is not possible say so, and return None."""
    try:
        async with asyncio.timeout(_CONNECT_WITHIN):
            broker = await stack.enter_async_context(AmqpBroker.connected(request.amqp_url))
    except (AMQPError, OSError, TimeoutError, ValueError) as error:
        why = (str(error) or type(error).__name__).replace(request.amqp_url, request.amqp_place).rstrip(".")
        print(
            f"broker   {request.amqp_place}  cannot be reached over AMQP: {why}. Name it with --amqp URL.\n", flush=True
        )
        return None
    release = f"  RabbitMQ {broker.release}" if broker.release else ""
    print(f"broker   {request.amqp_place}{release}\n", flush=True)
    return broker
