"""Heart-beats: the agreed intervals, and when a silent client counts as gone (STOMP 1.2, "Heart-beating").

Arithmetic only. The server owns the clock: it sends the LFs, and calls ``HeartbeatMonitor.tick``, by default once per
interval of the client (``heart_beat_grace`` changes that).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_HEADER: Final = re.compile(rb"([+-]?[0-9]{1,18}),([+-]?[0-9]{1,18})")

# Like RabbitMQ's adapter, the gateway closes at the second tick in a row without a byte. Between two ticks is a time T,
# so this is between 2 T and 3 T after the last byte.
_SILENT_INTERVALS: Final = 2


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The agreed intervals in whole seconds, 0 for none.

    ``send`` is how often the server promises to send something, ``expect`` how often the client does.
    """

    send: int = 0
    expect: int = 0

    @property
    def header(self) -> bytes:
        """The heart-beat header of CONNECTED, in milliseconds."""
        return b"%d,%d" % (self.send * 1000, self.expect * 1000)


def negotiate(header: bytes | None) -> Heartbeats | None:
    """Answer the heart-beat header of CONNECT, ``<cx>,<cy>`` in milliseconds; ``header`` is None without one.

    Returns:
        The intervals that the client asked for, rounded down but at least one second; None if the header is malformed.
    """
    found = _HEADER.fullmatch(header if header is not None else b"0,0")
    if found is None:
        return None
    return Heartbeats(send=_whole_seconds(int(found[2])), expect=_whole_seconds(int(found[1])))


def _whole_seconds(milliseconds: int) -> int:
    return max(1, milliseconds // 1000) if milliseconds > 0 else 0


class HeartbeatMonitor:
    """Decides when a client that promised heart-beats counts as gone."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = 0

    def tick(self, *, heard: bool) -> bool:
        """Note ``heard``: whether any byte arrived since the last tick. Returns whether the client counts as gone."""
        self._silent = 0 if heard else self._silent + 1
        return self._silent >= _SILENT_INTERVALS
