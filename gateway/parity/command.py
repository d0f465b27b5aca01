"""`stomp-gateway parity`: ask RabbitMQ's STOMP plugin and the gateway the same, and say where they differ."""

import asyncio
import logging
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiormq.exceptions import AMQPError

from gateway.errors import UsageError
from gateway.parity.broker import AmqpBroker
from gateway.parity.contest import Contest
from gateway.parity.greeting import greet
from gateway.parity.library import conversations, departures
from gateway.parity.release import Release
from gateway.parity.report import Report
from gateway.parity.request import Request, requested
from gateway.parity.script import Conversation
from gateway.parity.verdict import Outcome

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
        True when no rule is different.

    Raises:
        UsageError: the command line cannot be meant so.
        GreetingError: a server cannot be asked.
    """
    request = requested(options)
    chosen = _chosen(options.only)
    # A broker that hangs up is told in the report; the library's own words about it would come in between.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    plugin = await greet("plugin", request.plugin, request.identity)
    gateway = await greet("gateway", request.gateway, request.identity)
    print(f"plugin   {options.plugin}  {plugin}\ngateway  {options.gateway}  {gateway}")
    async with _broker(request) as broker:
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
        )
        started = time.monotonic()
        await contest.run(chosen, report.tell, report.count)
        report.conclude(time.monotonic() - started)
    return not report.outcomes[Outcome.DIFFERENT]


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


@asynccontextmanager
async def _broker(request: Request) -> AsyncIterator[AmqpBroker | None]:
    """Connect to the broker; where that is not possible say so, and go on without."""
    place = request.amqp_url.rpartition("@")[2]
    connecting = AmqpBroker.connected(request.amqp_url)
    try:
        async with asyncio.timeout(_CONNECT_WITHIN):
            broker = await connecting.__aenter__()
    except (AMQPError, OSError, TimeoutError, ValueError) as error:
        why = str(error) or type(error).__name__
        print(f"broker   {place}  cannot be reached over AMQP: {why}. Name it with --amqp URL.\n", flush=True)
        yield None
        return
    print(f"broker   {place}{f'  RabbitMQ {broker.release}' if broker.release else ''}\n", flush=True)
    try:
        yield broker
    finally:
        await connecting.__aexit__(None, None, None)
