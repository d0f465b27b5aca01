"""Plays transcripts by hand: python -m tests.support.transcript --server HOST:PORT --side plugin [FILES]."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from tests.support.transcript import SIDES, AmqpBroker, MismatchError, ScriptError, Side, SocketPeer, play
from tests.support.transcript.script import read_conversation

_ALL = Path(__file__).parents[2] / "transcripts"


def main() -> int:
    """Play the files and say how each went; the exit status is 1 where one did not go as written."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.transcript", description=__doc__)
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where the STOMP server listens")
    parser.add_argument("--side", required=True, choices=SIDES, help="whose expectations hold")
    parser.add_argument("--broker", default="amqp://guest:guest@127.0.0.1:5672/", help="the server's broker")
    parser.add_argument("files", nargs="*", type=Path, help="default: all transcripts")
    arguments = parser.parse_args()
    host, _, port = arguments.server.rpartition(":")
    files: list[Path] = arguments.files or sorted(_ALL.rglob("*.stomp"))
    return asyncio.run(_play_all(files, (host, int(port)), arguments.broker, arguments.side))


async def _play_all(files: list[Path], server: tuple[str, int], broker_url: str, side: Side) -> int:
    failures = 0
    async with AmqpBroker.connected(broker_url) as broker:
        for file in files:
            started = time.perf_counter()
            try:
                await play(read_conversation(file), SocketPeer(server), broker, side)
            except (MismatchError, ScriptError) as failure:
                failures += 1
                print(f"FAIL  {file.stem}\n{failure}\n")
            else:
                print(f"ok    {file.stem} ({time.perf_counter() - started:.2f} s)")
    print(f"{len(files) - failures} of {len(files)} transcripts as written on the {side}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
