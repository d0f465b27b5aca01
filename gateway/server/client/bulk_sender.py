"""Decides when a session sends so much that it should move to a bulk link, and when it should move back."""

from __future__ import annotations

from typing import Final

from gateway.session.traffic import SessionTraffic

# A session sends much if the publish window held it for _HELD seconds in total, without a pause of _PAUSE seconds, and
# if it published this many messages or bytes of bodies before the window holds it again. A session that only waits
# because of others has sent less.
_HELD: Final = 0.05
_PAUSE: Final = 1.0
_MANY: Final = 100
_MANY_BYTES: Final = 256 << 10

# The least seconds between two attempts to move.
_BETWEEN: Final = 5.0

# It sends little if for _CALM seconds it was not held, and published less than this in each second. A broker reads
# that much in a twentieth of a second.
_FEW: Final = 1000
_FEW_BYTES: Final = 4 << 20
_CALM: Final = 5


class BulkSender:
    """Measures one session that has filled a publish window. Times are in seconds, on a monotonic clock."""

    __slots__ = ("_calm", "_held", "_held_at", "_moved_at", "_open_at", "_published", "_traffic")

    def __init__(self, traffic: SessionTraffic) -> None:
        self._traffic = traffic
        # Since when it is held; None if it is not. When it was last released, and when it last moved.
        self._held_at: float | None = None
        self._open_at = self._moved_at = float("-inf")
        # The seconds that it was held without a pause.
        self._held = 0.0
        # The sums at the last call of _published_since, and the number of seconds with little traffic.
        self._published = self._total()
        self._calm = 0

    def _total(self) -> tuple[int, int]:
        sends = self._traffic.sends.values()
        return sum(each.published for each in sends), sum(each.published_bytes for each in sends)

    def _published_since(self) -> tuple[int, int]:
        """Messages and bytes since the last call."""
        (messages, size), self._published = self._published, self._total()
        return self._published[0] - messages, self._published[1] - size

    def window_full(self, now: float) -> bool:
        """Note that the session is held on a shared link. Returns whether it should move to a bulk link now."""
        self._held_at = now
        if now - self._open_at > _PAUSE:
            self._held = 0.0
        messages, size = self._published_since()
        is_much = self._held >= _HELD and (messages >= _MANY or size >= _MANY_BYTES)
        if not is_much or now - self._moved_at < _BETWEEN:
            return False
        self._moved_at, self._held = now, 0.0
        return True

    def window_full_again(self) -> None:
        """Note that the session is held on a bulk link."""
        self._calm = 0

    def window_open(self, now: float) -> None:
        """Note that the session is released."""
        if self._held_at is not None:
            self._held += now - self._held_at
            self._held_at, self._open_at = None, now

    def is_calm(self) -> bool:
        """Whether it has sent little for a while. Call it about once a second while it uses a bulk link."""
        messages, size = self._published_since()
        self._calm = self._calm + 1 if messages < _FEW and size < _FEW_BYTES else 0
        return self._calm >= _CALM
