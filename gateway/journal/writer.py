"""The writer of one directory: numbers the lines, encodes them, and hands them to the thread that has the files.

Theory of operation. Events collect in ``events``, a plain list that the hot path appends to. 512 of them, or a quarter
of a second, are one chunk: numbered, encoded and handed over. A line gets its number only then, so an event that is
dropped leaves no hole in the numbers: it is counted by the ``drop`` line in front of the next chunk. What is bounded
is what was handed over and is not written yet, in lines and bytes; the loop never waits for a disk.

Rotation is decided here too, by bytes and age, because the first line of a segment needs a number like every other.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gateway.journal import schema
from gateway.journal.clock import Clock
from gateway.journal.files import Files
from gateway.journal.segments import SegmentName

BATCH: Final = 512
"""Events that are written together."""

_PENDING: Final = 65_536
_PENDING_OCTETS: Final = 32 << 20
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Where and how: ``rotate_bytes`` bytes and ``rotate_after`` seconds to a segment, kept for ``retain`` seconds.

    ``gateway`` is the version that writes, ``configuration`` a digest of what it was told.
    """

    directory: Path
    node: str
    rotate_bytes: int = 64 << 20
    rotate_after: float = 60.0
    retain: float = 7 * 86_400.0
    gateway: str = ""
    configuration: str = ""


class Writer:
    """Writes one directory, as one boot.

    Args:
        settings: where and how.
        clock: of all journals.
        process: the process id, part of the files' names.
        pending: lines handed over and not written, at the most.
    """

    def __init__(self, settings: WriterSettings, clock: Clock, process: int, pending: int = _PENDING) -> None:
        self.boot = secrets.token_hex(8)
        # The hot path appends here and calls ``flush`` when BATCH have collected.
        self.events: list[schema.Line] = []
        self.clock = clock
        self.dropped = 0
        self._sessions = 0
        self._settings = settings
        self._process = process
        self._most = pending
        self._encoder = msgspec.json.Encoder()
        self._number = 0
        self._segment = -1
        self._segment_bytes = 0
        self._since: int | None = None
        self._unreported = 0
        self._handed = self._handed_octets = 0
        self._files = Files(settings.directory, settings.node, settings.retain)

    def start(self) -> None:
        """Make the directory and start writing.

        Raises:
            OSError: when nothing can be written there.
        """
        self._files.start()

    @property
    def lines(self) -> int:
        """Lines that were given a number."""
        return self._number

    @property
    def pending(self) -> int:
        """Lines handed over and not written yet."""
        return self._handed - self._files.written

    def next_session(self) -> int:
        """The number of a new session."""
        self._sessions += 1
        return self._sessions

    def put(self, event: schema.Line) -> None:
        """Write one event, soon.

        Args:
            event: with any number; it gets its own.
        """
        self.events.append(event)
        if len(self.events) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Hand over what has collected. Called for every full batch, and a few times a second."""
        events = self.events
        if not events:
            self._finish_when_old()
            return
        files = self._files
        if self.pending + len(events) > self._most or self._handed_octets - files.written_octets > _PENDING_OCTETS:
            self.dropped += len(events)
            self._unreported += len(events)
            events.clear()
            return
        lines = [*self._before(events[0].t), *events]
        # Cleared and not replaced, since accounts hold on to the list.
        events.clear()
        number = self._number
        for line in lines:
            line.q = number
            number += 1
        self._number = number
        octets = self._encoder.encode_lines(lines)
        self._files.write(octets, len(lines))
        self._handed += len(lines)
        self._handed_octets += len(octets)
        self._segment_bytes += len(octets)
        if self._segment_bytes >= self._settings.rotate_bytes:
            self._finish_segment()
        else:
            self._finish_when_old()

    def _before(self, at: int) -> Iterator[schema.Line]:
        """What has to stand in front of a chunk whose first event happened then."""
        if self._since is None:
            self._since = self.clock.now
            self._segment += 1
            self._segment_bytes = 0
            settings = self._settings
            name = SegmentName("gateway", settings.node, self.boot, self._process, self._segment)
            self._files.begin(name, at)
            yield schema.Open(
                at, 0, schema.VERSION, name.node, name.boot, name.pid, name.impl, settings.gateway,
                name.number, settings.configuration,
            )  # fmt: skip
        if self._unreported:
            unreported, self._unreported = self._unreported, 0
            yield schema.Drop(at, 0, unreported)

    def _finish_when_old(self) -> None:
        if self._since is not None and self.clock.now - self._since >= self._settings.rotate_after * _MICROSECONDS:
            self._finish_segment()

    def _finish_segment(self) -> None:
        self._since = None
        self._files.finish()

    def close(self, within: float = 5.0) -> bool:
        """Write the last line and everything before it, and finish the segment.

        Args:
            within: seconds to wait for the disk.

        Returns:
            Whether everything was written.
        """
        self.clock.tick()
        self.events.append(schema.Close(self.clock.time, 0))
        self.flush()
        if self._since is not None:
            self._finish_segment()
        return self._files.close(within)
