"""Replay: sends archived messages again, in the order in which their streams had them, without Spark and Java."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.errors import PipelineError
from gateway.pipeline.lake import Lake
from gateway.pipeline.lake_sql import Snapshot
from gateway.pipeline.stomp_sender import WINDOW, StompSender, StompServer, send_headers, sending

REPLAY_ID: Final = b"x-replay-id"
"""The header with which a consumer knows a message that is sent a second time: stream and offset."""

_PART_BYTES: Final = 64 << 20
"""About how many bytes of bodies are read, and put into order, at a time."""
_SHOWN: Final = 10
_RATE_STEP: Final = 0.05
"""Seconds between two looks at the clock while a rate is kept."""


@dataclass(frozen=True)
class ReplayOptions:
    """What to send again, and where to.

    ``where`` is a condition in SQL on the columns of ``messages``. Without a ``server``, only print what would be sent.
    Without a ``destination``, each message goes where it was sent the first time. ``rate`` is in messages per second,
    None for no limit. At most ``window`` messages are without a receipt at once.
    """

    lake: str
    where: str
    server: StompServer | None
    destination: str | None = None
    rate: float | None = None
    window: int = WINDOW


@dataclass(frozen=True, slots=True)
class _StreamDay:
    """The messages of a stream and a day."""

    vhost: str
    stream: str
    day: str
    messages: int
    size: int
    first: int
    last: int

    def in_words(self) -> str:
        return (
            f"{self.stream} in {self.vhost}, archived on {self.day}: {self.messages:,} messages, {self.size:,} bytes, "
            f"offsets {self.first:,} to {self.last:,}"
        )


def replay(options: ReplayOptions, out: TextIO, *, quiet: bool = False) -> int:
    """Print what is to be sent, send it, and print how much was receipted; returns how many messages that are.

    Raises PipelineError if there is no lake, the condition is wrong, or the server refuses a message.
    """
    lake = Lake(options.lake)
    lake.must_exist()
    snapshot = lake.snapshot("messages")
    parts = _parts(snapshot, options.where)
    total = sum(part.messages for part in parts)
    where_to = options.destination or "where they were sent before"
    if not quiet:
        verb = "to send" if options.server is not None else "would send"
        size = sum(part.size for part in parts)
        print(f"{verb} {total:,} messages, {size:,} bytes, {where_to}", file=out)
        print(*(f"  {part.in_words()}" for part in parts[:_SHOWN]), sep="\n", file=out)
        if len(parts) > _SHOWN:
            print(f"  and {len(parts) - _SHOWN:,} more days and streams", file=out)
    without = snapshot.sql(f"select count(*) n from messages where body is null and ({options.where})")["n"][0].as_py()  # noqa: S608
    if without:
        print(f"left out {without:,} messages whose bodies were too large for the archive", file=out)
    if options.server is None or not total:
        return total
    with sending(options.server, options.window) as sender, _bar(total, quiet=quiet) as advance:
        last: dict[str, Any] = {}
        try:
            for last in _paced(_messages(snapshot, options.where, parts), options.rate):
                _send(sender, last, options.destination)
                advance(sender.receipted)
            sender.finish()
            advance(sender.receipted)
        except (PipelineError, KeyboardInterrupt) as error:
            at = f"{last['stream']} offset {last['offset']}" if last else "the first one"
            note = f"{sender.receipted:,} of {total:,} messages were receipted; the last one sent was {at}."
            if isinstance(error, KeyboardInterrupt):
                print(note, file=out, flush=True)
                raise
            raise PipelineError(f"{error} {note}") from error
    print(f"receipted {sender.receipted:,} messages", file=out)
    return sender.receipted


@contextmanager
def _bar(total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal's standard error; it takes how many messages are receipted."""
    console = Console(stderr=True)
    columns = (TextColumn("receipted"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda receipted: bar.update(task, completed=receipted)


def _send(sender: StompSender, message: dict[str, Any], destination: str | None) -> None:
    identifier = REPLAY_ID, f"{message['stream']}-{message['offset']}".encode()
    sender.send(destination or message["destination"], send_headers(message, identifier), message["body"])


def _parts(snapshot: Snapshot, where: str) -> list[_StreamDay]:
    query = (
        "select vhost, stream, d as day, count(*) messages, sum(body_bytes) size, min(offset) first, max(offset) last "  # noqa: S608
        f"from messages where body is not null and ({where}) group by vhost, stream, d order by d, vhost, stream"
    )
    return [_StreamDay(**row) for row in snapshot.rows(query)]


def _messages(snapshot: Snapshot, where: str, parts: list[_StreamDay]) -> Iterator[dict[str, Any]]:
    """The messages in order, a range of offsets at a time, because a range is sorted in memory."""
    for part in parts:
        of_part = f"vhost = {_quoted(part.vhost)} and stream = {_quoted(part.stream)} and d = {_quoted(part.day)}"
        step = max(1, (part.last - part.first + 1) * _PART_BYTES // max(part.size, _PART_BYTES))
        for first in range(part.first, part.last + 1, step):
            offsets = f"offset between {first} and {first + step - 1}"
            wanted = f"{of_part} and {offsets} and body is not null and ({where})"
            query = f"select * from messages where {wanted} order by offset"  # noqa: S608
            yield from snapshot.rows(query)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _paced(messages: Iterator[dict[str, Any]], rate: float | None) -> Iterator[dict[str, Any]]:
    """The messages, no more a second than ``rate``."""
    began = time.monotonic()
    for number, message in enumerate(messages):
        if rate is not None and (ahead := number / rate - (time.monotonic() - began)) > _RATE_STEP:
            time.sleep(ahead)
        yield message
