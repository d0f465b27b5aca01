"""The neighbour of `make bench-neighbours`: a process of its own that sends one message at a time and waits for it.

It has one session for each login. A session subscribes to a topic of its own, sends a message to it, waits for the
message, rests, and sends the next one. At each line on standard input the process writes one line of JSON: for each
login the waits since the last line, in milliseconds. A wait that is under way counts with its age, so that a server
that answers nothing is seen. The last list has how late the process itself woke from its rests: the floor of what it
can measure.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from dataclasses import dataclass, field

from tests.bench.wire import Account, RowError, connected_socket

_REST = 0.002
_MS = 1000


@dataclass
class _Lane:
    """One session."""

    account: Account
    waits: list[float] = field(default_factory=list)
    sent_at: float | None = None
    rests_until: float = 0.0

    def open(self, topic: str) -> None:
        self.sock = connected_socket(self.account)
        destination = f"/topic/{topic}"
        self.sock.sendall(f"SUBSCRIBE\nid:0\ndestination:{destination}\nreceipt:ready\n\n\0".encode())
        answer = b""
        while b"\0" not in answer:
            answer += self.sock.recv(4096)
        if not answer.startswith(b"RECEIPT"):
            raise RowError(f"the neighbour's SUBSCRIBE was answered with {answer[:200]!r}")
        self.message = f"SEND\ndestination:{destination}\n\nhello\0".encode()

    def send(self, now: float) -> None:
        self.sent_at = now
        self.sock.sendall(self.message)

    def receive(self) -> None:
        data = self.sock.recv(65536)
        if not data or data.startswith(b"ERROR"):
            raise RowError(f"the neighbour lost its session: {data[:200]!r}")
        if b"\0" in data and self.sent_at is not None:
            now = time.perf_counter()
            self.waits.append((now - self.sent_at) * _MS)
            self.sent_at, self.rests_until = None, now + _REST

    def take(self, now: float) -> list[float]:
        taken, self.waits = self.waits, []
        return taken if self.sent_at is None else [*taken, (now - self.sent_at) * _MS]


def main() -> None:
    """Take the accounts as JSON from the first line of standard input, and probe until standard input ends."""
    # Not through sys.stdin, whose buffer the poller does not see.
    accounts = [Account(**fields) for fields in json.loads(_line())]
    lanes = [_Lane(account) for account in accounts]
    late = _Lane(accounts[0])
    for number, lane in enumerate(lanes):
        lane.open(f"neighbour-{os.getpid()}-{number}")
    by_number = {lane.sock.fileno(): lane for lane in lanes}
    poller = select.poll()
    for number in (0, *by_number):
        poller.register(number, select.POLLIN)
    while True:
        now = time.perf_counter()
        for lane in lanes:
            if lane.sent_at is None and now >= lane.rests_until:
                if lane.waits:
                    late.waits.append((now - lane.rests_until) * _MS)
                lane.send(now)
        resting = [lane.rests_until for lane in lanes if lane.sent_at is None]
        timeout = max(0.0, min(resting) - time.perf_counter()) * _MS if resting else 1000
        for number, _ in poller.poll(timeout):
            if number in by_number:
                by_number[number].receive()
            elif _line():
                print(json.dumps([lane.take(time.perf_counter()) for lane in (*lanes, late)]), flush=True)
            else:
                return


def _line() -> str:
    line = b""
    while (byte := os.read(0, 1)) and byte != b"\n":
        line += byte
    return line.decode()


if __name__ == "__main__":
    try:
        main()
    except (RowError, OSError) as error:
        print(json.dumps(str(error)), flush=True)
        sys.exit(1)
