"""``python -m tests.soak.load``: a part of the sessions, in a process of its own.

It writes a line of JSON every few seconds. When its standard input ends, it waits until all messages are delivered, and
says in its last line which were not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import ssl
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.soak.behaviour import Doors, Sessions

# It complains of each TLS connection that the gateway closed.
logging.getLogger("asyncio").setLevel(logging.CRITICAL)

_REPORT_EVERY: Final = 5.0
_OPENED_PER_SECOND: Final = 100.0
_UNDER_WAY: Final = 3.0
_DELIVERED_WITHIN: Final = 30.0


async def _main(options: argparse.Namespace) -> None:
    context = ssl.create_default_context(cafile=options.ca_file)
    tcp, tls, websocket = (("127.0.0.1", port) for port in options.ports)
    doors = Doors(tcp, tls, websocket, context)
    sessions = Sessions(doors, options.begun, random.Random(options.first))  # noqa: S311 - no secret
    told_to_end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    tasks = [asyncio.create_task(_report_often(sessions)), told_to_end]
    for number in range(options.first, options.first + options.count):
        tasks.append(asyncio.create_task(sessions.run(number)))
        await asyncio.sleep(1 / _OPENED_PER_SECOND)
    _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    sessions.send_no_more()
    for task in tasks:
        if task.done():
            task.result()  # of a session: a fault of the soak
    await _delivered(sessions)
    _report(sessions, missing=sessions.promises.missing())
    for task in tasks:
        _ = task.cancel()
    _ = await asyncio.gather(*tasks, return_exceptions=True)


async def _delivered(sessions: Sessions) -> None:
    """Wait until what is under way has its receipts, and all messages with a receipt have come."""
    await asyncio.sleep(_UNDER_WAY)
    deadline = time.monotonic() + _DELIVERED_WITHIN
    while sessions.promises.missing() and time.monotonic() < deadline:  # noqa: ASYNC110 - often enough
        await asyncio.sleep(1)


async def _report_often(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(_REPORT_EVERY)
        _report(sessions)


def _report(sessions: Sessions, **more: object) -> None:
    tally = sessions.tally
    line = {
        "latencies": tally.latencies, "errors": tally.errors, "counts": tally.counts, "there": len(sessions.there),
    }  # fmt: skip
    print(json.dumps(line | more), flush=True)
    tally.latencies, tally.errors, tally.counts = [], [], Counter()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.load", description=__doc__)
    parser.add_argument("--ports", type=int, nargs=3, required=True, help="TCP, TLS, WebSocket")
    parser.add_argument("--ca-file", type=Path, required=True)
    parser.add_argument("--begun", type=float, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    return parser


if __name__ == "__main__":
    asyncio.run(_main(_parser().parse_args()))
