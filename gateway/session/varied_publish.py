"""SENDs that differ only in headers that affect neither route nor properties: the common part is computed once.

A producer may send an identifier or a time with each message, so that no header block comes twice. The values that
differ become gaps in one `CachedPublish`, as receipt and content-length are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from typing import Final

from gateway.session.cached_publish import CachedPublish
from gateway.session.queues import QUEUE_ARGUMENTS
from gateway.session.translate import PROPERTIES
from gateway.stomp.frame import CONTENT_LENGTH, RECEIPT

# Headers of SEND whose values decide where a message goes or how it gets there. All others are entries of the headers
# table and nothing else.
_MEANT: Final = PROPERTIES.union(
    QUEUE_ARGUMENTS,
    (b"message-id", b"transaction", b"mandatory", b"durable", b"auto-delete", b"exclusive"),
)
_VOLATILE: Final = (RECEIPT, CONTENT_LENGTH)

# What is known of all kinds of a session may take so many bytes, and no SEND is looked at whose headers are longer than
# this.
_MOST_BYTES: Final = 256 << 10
_LARGEST: Final = 2048

# Of about so many names and kinds it is known that they have come: at first, and at most.
_FIRST_SEEN: Final = 8
_MOST_SEEN: Final = 1024

_Kind = tuple[tuple[bytes, ...], tuple[bytes, ...]]


class VariedPublish(CachedPublish):
    """SENDs with the same names of headers, and the same values of those that mean something."""

    __slots__ = ("headers",)

    # Of the SEND that is published next.
    headers: Mapping[bytes, bytes]

    def values(self, receipt: bytes | None, length: bytes | None) -> tuple[bytes, ...]:
        """See `CachedPublish.values`. HOT: once per SEND."""
        del receipt, length  # they are among the headers
        headers = self.headers
        return tuple([headers[name] for name in self.gaps])

    def held_with(self, values: tuple[bytes, ...]) -> int:
        """See `CachedPublish.held_with`. HOT: once per SEND, if its headers are large."""
        return sum(map(len, values)) if self.held else 0


class VariedPublishes:
    """The kinds of SENDs of one session.

    Args:
        make: makes what is cached, from headers and the names of those that differ.
        meant: further headers whose values mean something.
    """

    __slots__ = ("_bytes", "_kinds", "_make", "_meant", "_names", "_seen")

    def __init__(
        self, make: Callable[[Mapping[bytes, bytes], tuple[bytes, ...]], VariedPublish], meant: Collection[bytes]
    ) -> None:
        self._make = make
        self._meant = _MEANT.union(meant)
        self._kinds: dict[_Kind, VariedPublish] = {}
        # Of the headers of these kinds.
        self._names: set[tuple[bytes, ...]] = set()
        self._bytes = 0
        # Hashes of what has come once, names of headers and then kinds, each in the place that its lower bits say. Most
        # never come again.
        self._seen = array("q", bytes(8 * _FIRST_SEEN))

    def find(self, headers: Mapping[bytes, bytes]) -> VariedPublish | None:
        """What SENDs with such headers have in common; None if there has been none, or nothing in them can differ.

        Raises:
            StompError: as for `CachedPublish`.
        """
        meant, names = self._meant, tuple(headers)
        if names not in self._names and not self._has_seen(hash(names)):
            return None
        text = sum(map(len, names)) + sum(map(len, headers.values()))
        if text > _LARGEST:
            return None
        kind = names, tuple([value for name, value in headers.items() if name in meant])
        found = self._kinds.get(kind)
        if found is None and self._has_seen(hash(kind)):
            found = self._make(headers, tuple([name for name in names if name not in meant]))
            self._bytes += _size_of_kind(len(names), text)
            if self._bytes > _MOST_BYTES:
                self._drop_half()
            self._kinds[kind] = found
            self._names.add(names)
        return found

    def _drop_half(self) -> None:
        """Every second one goes, as in a `BlockCache`."""
        for each in list(self._kinds)[::2]:
            del self._kinds[each]
        self._names = {names for names, _ in self._kinds}
        self._bytes //= 2

    def _has_seen(self, mark: int) -> bool:
        seen = self._seen
        at = mark % len(seen)
        if seen[at] == mark:
            return True
        while seen[at] and len(seen) < _MOST_SEEN:
            # Most sessions send few kinds, and there are many sessions.
            before, seen = seen, array("q", bytes(16 * len(seen)))
            for each in filter(None, before):
                seen[each % len(seen)] = each
            self._seen, at = seen, mark % len(seen)
        seen[at] = mark
        return False


def _size_of_kind(count: int, text: int) -> int:
    """The bytes that a kind takes once it is published, as measured: for so many headers with so many bytes."""
    return 2500 + 450 * count + 8 * text
