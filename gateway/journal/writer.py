"""The writer of one directory: numbers the lines, encodes them, and gives them to the thread that writes the files.

Events collect in ``events``, a plain list that the hot path appends to. A chunk is 512 of them, or those of a quarter
of a second. Lines get their numbers only when their chunk is encoded and handed over, so a dropped event leaves no gap
in the numbers: the ``drop`` line in front of the next chunk counts it. What was handed over and is not written yet is
bounded in lines and in bytes; the event loop never waits for a disk.

Rotation by size and age is decided here too, because the first line of a segment needs a number like any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Final

import msgspec

from gateway import __version__
from gateway.config.journal_settings import JournalSettings
from gateway.journal import schema
from gateway.journal.files import Files
from gateway.journal.segments import SegmentName, SegmentRetention

BATCH: Final = 512
"""Events that are written together."""

_MAX_PENDING: Final = 65_536
"""Lines that are handed over and not written."""
_MAX_PENDING_BYTES: Final = 32 << 20
_MICROSECONDS: Final = 1_000_000
_ENCODER: Final = msgspec.json.Encoder()


class Clock:
    """The journal's clock, in microseconds. It is read once per batch of bytes, whose events share one time.

    ``now`` is monotonic, as of the last ``tick``; ``now + offset`` is the time since the epoch, UTC. Between two
    batches, call ``tick`` before you read it.
    """

    __slots__ = ("now", "offset")

    def __init__(self) -> None:
        self.now = self.offset = 0
        self.adjust()

    def tick(self) -> None:
        """Read the clock. HOT: once per read."""
        self.now = monotonic_ns() // 1000

    def adjust(self) -> None:
        """Follow corrections of the machine's time."""
        self.now = monotonic_ns() // 1000
        self.offset = time_ns() // 1000 - self.now

    @property
    def time(self) -> int:
        """Since the epoch, UTC, as of the last ``tick``."""
        return self.now + self.offset

    def stamp(self) -> bytes:
        """The same as AMQP writes it. HOT: once for many messages."""
        return (self.now + self.offset).to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Where and how to write.

    ``configuration`` is a digest of the gateway's, ``impl`` what is journalled: a gateway, or what a tap looks at.
    """

    directory: Path
    node: str
    journal: JournalSettings = field(default_factory=JournalSettings)
    configuration: str = ""
    impl: str = "gateway"


class Writer:
    """Writes one directory, as one boot. All writers of the gateway share its clock.

    ``process`` is the process id, part of the files' names. ``on_finished`` is called, in another thread, when a
    segment is finished.
    """

    def __init__(
        self, settings: WriterSettings, clock: Clock, process: int, on_finished: Callable[[], None] = lambda: None
    ) -> None:
        self.boot = secrets.token_hex(8)
        # The hot path appends here and calls ``flush`` when there are BATCH of them.
        self.events: list[schema.Line] = []
        self.clock = clock
        self.lines = 0
        """Lines that were given a number."""
        self.dropped = 0
        self._unreported = 0
        self._sessions = 0
        self._segments = 0
        # When the open segment began, on the clock; None without one.
        self._begun: int | None = None
        self._segment_bytes = 0
        self.settings = settings
        self._process = process
        journal = settings.journal
        retention = SegmentRetention(
            settings.directory, settings.impl, settings.node, journal.retain, journal.retain_bytes,
            ships=journal.ship.to is not None,
        )  # fmt: skip
        # Public, because the owner of the writer starts its thread and asks for what is not written yet.
        self.files = Files(retention, on_finished)

    def next_session(self) -> int:
        """The number of a new session."""
        self._sessions += 1
        return self._sessions

    def put(self, event: schema.Line) -> None:
        """Write one event soon. Its number is set then."""
        self.events.append(event)
        if len(self.events) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand over what has collected. Called for every full batch, and a few times a second."""
        events, files = self.events, self.files
        if not events:
            self._finish_when_old()
            return
        if files.pending + len(events) > _MAX_PENDING or files.pending_bytes > _MAX_PENDING_BYTES:
            self.dropped += len(events)
            self._unreported += len(events)
            events.clear()
            return
        lines = [*self._before(events[0].t), *events]
        # Cleared and not replaced, since the counters of sessions keep a reference to the list.
        events.clear()
        for number, line in enumerate(lines, self.lines):
            line.q = number
        self.lines += len(lines)
        data = _ENCODER.encode_lines(lines)
        files.write(data, len(lines))
        self._segment_bytes += len(data)
        if self._segment_bytes >= self.settings.journal.rotate_bytes:
            self._finish_segment()
        else:
            self._finish_when_old()

    def _before(self, at: int) -> Iterator[schema.Line]:
        """The lines in front of a chunk whose first event happened at ``at``."""
        if self._begun is None:
            self._begun = self.clock.now
            self._segment_bytes = 0
            settings = self.settings
            name = SegmentName(settings.impl, settings.node, self.boot, self._process, self._segments)
            self._segments += 1
            self.files.begin(name, at)
            yield schema.OpenLine(
                at, 0, schema.VERSION, name.node, name.boot, name.pid, name.impl, __version__, name.number,
                settings.configuration,
            )  # fmt: skip
        if self._unreported:
            unreported, self._unreported = self._unreported, 0
            yield schema.DropLine(at, 0, unreported)

    def _finish_when_old(self) -> None:
        rotate_after = self.settings.journal.rotate_after * _MICROSECONDS
        if self._begun is not None and self.clock.now - self._begun >= rotate_after:
            self._finish_segment()

    def _finish_segment(self) -> None:
        self._begun = None
        self.files.finish()

    def close(self, within: float = 5.0) -> bool:
        """Write everything and the last line within that many seconds. Returns whether everything was written."""
        self.clock.tick()
        self.events.append(schema.CloseLine(self.clock.time, 0))
        self.flush()
        if self._begun is not None:
            self._finish_segment()
        return self.files.close(within)
