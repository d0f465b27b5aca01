"""Journals made up by chance, to the letter of the schema: the same seed gives the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gateway.journal import schema as j
from gateway.journal.histogram import bucket_of
from gateway.journal.segments import SegmentName

START = 1_795_219_200_000_000
"""2026-11-21 00:00 UTC, in microseconds since the epoch."""

SECOND = 1_000_000
DAY = 86_400 * SECOND


@dataclass
class Made:
    """What was written: segments and lines, and how many of them are which event."""

    segments: list[Path] = field(default_factory=list)
    lines: int = 0
    events: dict[str, int] = field(default_factory=dict)


class JournalMaker:
    """Makes up the journal of one boot.

    Args:
        directory: of the journal.
        seed: decides everything.
        node: who writes.
        start: of the boot, microseconds since the epoch.
        span: of the boot, in microseconds.
    """

    def __init__(
        self, directory: Path, *, seed: int = 1, node: str = "node1", start: int = START, span: int = 3600 * SECOND
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable is what it must be
        self._waits = random.Random(seed)  # noqa: S311 - its own, so that it changes nothing else
        self._directory = directory
        self._node = node
        self._boot = f"{self._random.getrandbits(64):016x}"
        self._start = start
        self._span = span
        self._encoder = msgspec.json.Encoder()

    def write(self, lines: int, *, per_segment: int = 1000, close: bool = True) -> Made:
        """Write about so many lines into finished segments.

        Args:
            lines: how many, about; a session is written to its end.
            per_segment: lines to a segment.
            close: whether the boot ends in good order.
        """
        made = Made()
        number = 0
        pending: list[j.Line] = []
        for line in self._boot_lines(lines, close=close):
            if not pending:
                pending.append(self._open(made.segments.__len__(), line.t))
            pending.append(line)
            if len(pending) >= per_segment:
                number = self._finish(pending, number, made)
        if pending:
            self._finish(pending, number, made)
        return made

    def _open(self, segment: int, t: int) -> j.OpenLine:
        return j.OpenLine(t, 0, j.VERSION, self._node, self._boot, 4711, "gateway", "0.1.0", segment)

    def _finish(self, pending: list[j.Line], number: int, made: Made) -> int:
        for line in pending:
            line.q = number
            number += 1
            name = msgspec.json.decode(self._encoder.encode(line))["e"]
            made.events[name] = made.events.get(name, 0) + 1
        day = datetime.fromtimestamp(pending[0].t / SECOND, UTC).strftime("%Y-%m-%d")
        name = str(SegmentName("gateway", self._node, self._boot, 4711, len(made.segments)))
        path = self._directory / f"d={day}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._encoder.encode_lines(pending))
        made.segments.append(path)
        made.lines += len(pending)
        pending.clear()
        return number

    def _boot_lines(self, wanted: int, *, close: bool) -> Iterator[j.Line]:
        written, session = 0, 0
        clock = self._start
        # Sessions take turns in order of time, more or less as real ones do: lines of a boot need not be in order.
        while written < wanted:
            session += 1
            for line in self._session(session, clock):
                written += 1
                yield line
            clock += self._random.randrange(max(1, self._span * 20 // max(wanted, 20)))
        if self._random.random() < 0.5:
            yield j.DropLine(clock, 0, self._random.randrange(1, 100))
        if close:
            yield j.CloseLine(clock + SECOND, 0)

    def _session(self, c: int, t: int) -> Iterator[j.Line]:
        chance = self._random
        if chance.random() < 0.05:
            yield j.ErrorLine(t, 0, "bad-connect", vh="/", ip="192.0.2.9")
            return
        vh = chance.choice(("/", "/", "orders"))
        u = chance.choice(("app1", "app2", "reports", "søren"))
        ver = chance.choice(("1.0", "1.1", "1.2", "1.2"))
        began = t
        yield j.ConnectLine(
            t, 0, c, vh, u, "192.0.2.1", chance.random() < 0.3, ver, "0,0", chance.randrange(200, 90_000)
        )
        yield j.UseLine(t, 0, c, vh, u, chance.choice(("receipt", "transaction", "nack", "temp-queue")), ver)
        body = self._summary if chance.random() < 0.4 else self._messages
        unacked = 0
        for line in body(c, vh, u, t):
            t = max(t, line.t)
            if isinstance(line, j.UnsubscribeLine):
                unacked = line.n
            yield line
        if chance.random() < 0.1:
            yield j.ErrorLine(t, 0, chance.choice(("not_found", "processing-error")), c, vh, u)
        if chance.random() < 0.1:
            yield j.HoldLine(t, 0, c, vh, u, "confirm-window", chance.randrange(2_000_000))
        t += chance.randrange(SECOND)
        if chance.random() < 0.9:
            totals = j.SessionTotals(
                chance.randrange(100), chance.randrange(100), 5000, 6000, unacked, unacked + 3, t - began
            )
            yield j.EndLine(t, 0, c, vh, u, chance.choice(("disconnect", "client-gone", "link-lost")), totals)

    def _destination(self) -> tuple[str, str]:
        kind = self._random.choice(("queue", "queue", "topic", "exchange", "amqq", "reply"))
        prefix = {"queue": "/queue/", "topic": "/topic/", "exchange": "/exchange/e/", "amqq": "/amq/queue/"}
        return ("/reply-queue/*" if kind == "reply" else f"{prefix[kind]}d{self._random.randrange(8)}"), kind

    def _subscription(self, c: int, vh: str, u: str, t: int) -> j.SubscribeLine:
        chance = self._random
        durable = chance.random() < 0.3
        d, dk = (f"/topic/d{chance.randrange(8)}", "topic") if durable else self._destination()
        am = chance.choice(("auto", "client", "client-individual"))
        name = f"stomp-subscription-{chance.randrange(6)}" if durable else None
        return j.SubscribeLine(t, 0, c, vh, u, d, dk, str(chance.randrange(3)), am, 50, durable, False, False, name)

    def _unsub(self, sub: j.SubscribeLine, t: int, unacked: int) -> j.UnsubscribeLine:
        code = self._random.choice(("unsubscribe", "deleted", "cancelled", "end", "end", "end"))
        return j.UnsubscribeLine(t, 0, sub.c, sub.vh, sub.u, sub.d, sub.dk, sub.s, code, unacked, sub.sn)

    def _messages(self, c: int, vh: str, u: str, t: int) -> Iterator[j.Line]:
        """A session at level message."""
        chance = self._random
        sub = self._subscription(c, vh, u, t)
        yield sub
        outstanding = 0
        for m in range(1, chance.randrange(2, 12)):
            t += chance.randrange(400_000)
            d, dk = self._destination()
            w = 4.0 if chance.random() < 0.1 else None
            yield j.SendLine(t, 0, c, vh, u, d, dk, m, chance.randrange(2000), 3, True, False, True, w)
            rejected = "rejected" if chance.random() < 0.02 else None
            yield j.ConfirmLine(t + 900, 0, c, vh, u, d, dk, m, chance.randrange(50_000), rejected, w)
            again = chance.random() < 0.1
            waited = self._waits.randrange(5_000_000) if self._waits.random() < 0.5 else None
            yield j.DeliveryLine(
                t + 950, 0, c, vh, u, sub.d, sub.dk, sub.s, sub.am, m, chance.randrange(2000), again, sub.sn, ql=waited
            )
            if sub.am == "auto":
                continue
            outstanding += 1
            fate = chance.random()
            took = chance.randrange(1, 3_000_000)
            about = (c, vh, u, sub.d, sub.dk, sub.s, sub.am, m)
            if fate < 0.7:
                yield j.AckLine(t + took, 0, *about, outstanding, took if fate < 0.65 else None, sub.sn)
                outstanding = 0
            elif fate < 0.8:
                yield j.NackLine(t + took, 0, *about, "requeue" if fate < 0.75 else "discard", 1, took, sub.sn)
                outstanding -= 1
        yield self._unsub(sub, t, outstanding)

    def _summary(self, c: int, vh: str, u: str, t: int) -> Iterator[j.Line]:
        """A session at level session."""
        chance = self._random
        sub = self._subscription(c, vh, u, t)
        yield sub
        unacked = 0
        for _ in range(chance.randrange(1, 4)):
            t += 10 * SECOND
            d, dk = self._destination()
            sent = chance.randrange(1, 500)
            confirmed = chance.randrange(sent + 1)
            done = {"send": sent, "send_bytes": sent * 100, "conf": confirmed, "rejected": 1}
            yield j.StatLine(t, 0, c, vh, u, d, dk, done, self._histogram("conf", confirmed // 2))
            got = chance.randrange(1, 500)
            counts = {"dlv": got, "dlv_bytes": got * 90, "redelivered": chance.randrange(got)}
            acked = 0 if sub.am == "auto" else chance.randrange(got)
            if acked:
                counts |= {"ack": acked, "requeue": 2, "discard": 1}
                unacked += max(0, got - acked - 3)
            times = self._histogram("ack", acked)
            if self._waits.random() < 0.5:
                times |= {f"queue:{self._waits.randrange(300)}": got}
            yield j.StatLine(t, 0, c, vh, u, sub.d, sub.dk, counts, times or None, sub.s, sub.sn, sub.am)
        yield self._unsub(sub, t, unacked)

    def _histogram(self, name: str, count: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for _ in range(count):
            key = f"{name}:{bucket_of(int(self._random.lognormvariate(8, 1.5)))}"
            found[key] = found.get(key, 0) + 1
        return found


def write_segment(
    directory: Path,
    lines: Iterable[Mapping[str, object] | str],
    *,
    node: str = "node1",
    boot: str = "00000000000000aa",
    start: int = START,
    number: int = 0,
    first: int = 0,
) -> Path:
    """Write one finished segment by hand.

    Args:
        directory: of the journal.
        lines: each without ``q``, or a text that is taken as it is; ``open`` is put before them.
        node: who writes.
        boot: its boot, 16 hexadecimal digits.
        start: when the segment was begun, microseconds since the epoch.
        number: of the segment.
        first: the number of its first line.
    """
    opening = {
        "e": "open", "t": start, "v": j.VERSION, "node": node, "boot": boot, "pid": 4711, "impl": "gateway",
        "gw": "0.1.0", "seg": number,
    }  # fmt: skip
    texts = []
    for q, line in enumerate((opening, *lines), start=first):
        texts.append(line if isinstance(line, str) else msgspec.json.encode({**line, "q": q}).decode())
    day = datetime.fromtimestamp(start / SECOND, UTC).strftime("%Y-%m-%d")
    path = directory / f"d={day}" / str(SegmentName("gateway", node, boot, 4711, number))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(text + "\n" for text in texts), "utf-8")
    return path
