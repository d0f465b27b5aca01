"""The publish window: bounds the bytes in flight over a shared link, so that no message waits long for a flood.

Between gateway and broker, the kernels buffer megabytes, perhaps a hundred thousand small messages, and the gateway
cannot limit the buffer of the broker's socket. So the gateway regularly sends a marker, a cheap method on a channel of
its own. The answer shows that the broker has read everything before it, and how long that took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link, WindowUser
from gateway.server.fault_boundary import guarded

# The size of the window in bytes: at first, at least, at most, and at least while only one session publishes on the
# link. It grows if the answer to a marker takes less than _QUICK seconds, and shrinks if it takes more than _SLOW,
# because the broker reads large messages a hundred times faster than small ones.
_FIRST: Final = 128 << 10
_LEAST: Final = 32 << 10
_MOST: Final = 4 << 20
_ALONE: Final = 1 << 20
_QUICK: Final = 0.01
_SLOW: Final = 0.025

# A session that writes at most this many bytes at a time is not held by a full window, unless it is full several times
# over. So sessions that send little do not wait for those that send much.
_LITTLE: Final = 8 << 10
_TIMES_FULL: Final = 4


class PublishWindow:
    """The window of one link. ``clock`` is monotonic, in seconds."""

    def __init__(self, link: Link, clock: Callable[[], float]) -> None:
        self._link = link
        self._clock = clock
        self._size = _FIRST
        # The bytes in flight: those that the broker is not known to have read, and those of them after the last marker.
        self._in_flight = self._unmarked = 0
        self._channel: LinkChannel | None = None
        # Sessions that are held, in the order in which they will be released.
        self._waiting: deque[WindowUser] = deque()

    @property
    def channels(self) -> int:
        """The number of the link's channels that belong to the window: 0 or 1."""
        return int(self._channel is not None and self._channel.closed is None)

    @property
    def _window(self) -> int:
        return self._size if len(self._link.users) > 1 else max(self._size, _ALONE)

    def published(self, user: WindowUser, size: int) -> None:
        """Note that a session has written ``size`` bytes. This may hold it. HOT: once per batch."""
        self._in_flight += size
        self._unmarked += size
        window = self._window
        is_full = self._in_flight > window
        if is_full or self._unmarked > window >> 2:
            self._mark()
            if is_full and (size > _LITTLE or self._in_flight > _TIMES_FULL * window) and self._in_flight:
                self._waiting.append(user)
                user.window_full()

    def hold_if_full(self, user: WindowUser) -> None:
        """Hold a session that is about to write much, if the window is full."""
        if self._in_flight > self._window:
            # Perhaps no marker is under way: the window shrinks when another session joins the link.
            self._mark()
            if self._in_flight:
                self._waiting.append(user)
                user.window_full()

    def forget(self, user: WindowUser) -> None:
        """Note that a session no longer publishes on the link."""
        if user in self._waiting:
            self._waiting.remove(user)

    def _mark(self) -> None:
        size, self._unmarked = self._unmarked, 0
        if size:
            try:
                if self._channel is None or self._channel.closed is not None:
                    self._channel = LinkChannel.begun(self._link)
                self._channel.ask().add_done_callback(partial(self._marked, size, self._clock()))
            except UpstreamError:
                # The link is lost, or has no room for another channel. Do without a window.
                self._in_flight -= size

    def _marked(self, size: int, sent_at: float, _answer: object) -> None:
        """Take the answer to a marker, or the loss of the link."""
        self._in_flight -= size
        waited = self._clock() - sent_at
        if waited > _SLOW:
            self._size = max(_LEAST, self._size * 3 >> 2)
        elif waited < _QUICK and self._waiting:
            self._size = min(_MOST, self._size * 5 >> 2)
        for _ in range(len(self._waiting)):
            if not self._waiting or self._in_flight > self._window:
                break
            user = self._waiting.popleft()
            guarded(user, user.window_open)
