"""SENDs that differ only in headers that affect neither route nor properties share one translation.

A producer may send an identifier or a time with each message, so that no header block comes twice. The values that
differ become ``gaps`` of one `CachedPublish`, like receipt and content-length.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from typing import Final

from gateway.session.cached_publish import CachedPublish
from gateway.session.queues import QUEUE_ARGUMENTS
from gateway.session.translate import PROPERTIES

# The headers of SEND whose values decide where a message goes or how. All others are only entries of the headers table.
_SIGNIFICANT: Final = PROPERTIES.union(
    QUEUE_ARGUMENTS,
    (b"message-id", b"transaction", b"mandatory", b"durable", b"auto-delete", b"exclusive"),
)

# The memory in bytes for all kinds of a session, and the size of the largest headers that are looked up.
_MOST_BYTES: Final = 256 << 10
_LARGEST: Final = 2048

# The number of names and kinds that are remembered as seen once: at first, and at most.
_FIRST_SEEN: Final = 8
_MOST_SEEN: Final = 1024

_Kind = tuple[tuple[bytes, ...], tuple[bytes, ...]]


class VariedPublish(CachedPublish):
    """The translation of SENDs of one kind: with the same header names, and the same values of significant headers.

    ``headers`` are those of the SEND that is published next.
    """

    __slots__ = ()

    def values(self, receipt: bytes | None, length: bytes | None) -> tuple[bytes, ...]:
        """See `CachedPublish.values`. HOT: once per SEND."""
        del receipt, length  # included in the headers
        headers = self.headers
        return tuple([headers[name] for name in self.gaps])

    def held_with(self, values: tuple[bytes, ...]) -> int:
        """See `CachedPublish.held_with`. HOT: once per SEND, if its headers are large."""
        return sum(map(len, values)) if self.held else 0


class VariedPublishes:
    """The kinds of SENDs of one session.

    Args:
        make: creates a `VariedPublish` from headers and the names of those that differ.
        significant: further significant headers.
    """

    __slots__ = ("_bytes", "_kinds", "_make", "_names", "_seen", "_significant")

    def __init__(
        self, make: Callable[[Mapping[bytes, bytes], tuple[bytes, ...]], VariedPublish], significant: Collection[bytes]
    ) -> None:
        self._make = make
        self._significant = _SIGNIFICANT.union(significant)
        self._kinds: dict[_Kind, VariedPublish] = {}
        # The header names of these kinds.
        self._names: set[tuple[bytes, ...]] = set()
        self._bytes = 0
        # Hashes of header names and kinds that were seen once, indexed by their lower bits. Most never come again.
        self._seen = array("q", bytes(8 * _FIRST_SEEN))

    def find(self, headers: Mapping[bytes, bytes]) -> VariedPublish | None:
        """Find the translation of SENDs of this kind, or create it when the kind comes for the second time.

        Returns None for a new kind, and for large headers. Raises StompError as `CachedPublish` does.
        """
        significant, names = self._significant, tuple(headers)
        if names not in self._names and not self._has_seen(hash(names)):
            return None
        text = sum(map(len, names)) + sum(map(len, headers.values()))
        if text > _LARGEST:
            return None
        kind = names, tuple([value for name, value in headers.items() if name in significant])
        found = self._kinds.get(kind)
        if found is None and self._has_seen(hash(kind)):
            found = self._make(headers, tuple([name for name in names if name not in significant]))
            self._bytes += _size_of_kind(len(names), text)
            if self._bytes > _MOST_BYTES:
                self._drop_half()
            self._kinds[kind] = found
            self._names.add(names)
        return found

    def _drop_half(self) -> None:
        """Evict every second kind, as in `BlockCache`."""
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
            # It starts small because most sessions send few kinds, and there are many sessions.
            before, seen = seen, array("q", bytes(16 * len(seen)))
            for each in filter(None, before):
                seen[each % len(seen)] = each
            self._seen, at = seen, mark % len(seen)
        seen[at] = mark
        return False


def _size_of_kind(count: int, text: int) -> int:
    """The memory in bytes, as measured, of a kind with ``count`` headers of ``text`` bytes in total."""
    return 2500 + 450 * count + 8 * text
