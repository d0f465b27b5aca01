"""Bounds what sessions have on its way over a shared link, so that nobody's message waits long behind a flood.

Between gateway and broker the kernel keeps megabytes, which may be a hundred thousand small messages. No setting of the
gateway's own socket bounds what lies in the broker's. So the gateway sends a marker behind every so many bytes: a cheap
method, on a channel of its own. Its answer says that the broker has read everything before it, and how long that took.
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

# The window in bytes: at first, at least, at most; and at least while one session alone publishes on the link, for the
# sake of its rate. It grows while markers come back quickly, and shrinks while they come back slowly, in seconds: the
# broker reads large messages a hundred times faster than small ones.
_FIRST: Final = 128 << 10
_LEAST: Final = 32 << 10
_MOST: Final = 4 << 20
_ALONE: Final = 1 << 20
_QUICK: Final = 0.01
_SLOW: Final = 0.025

# So many bytes in one write pass although the window is full, unless it is full several times over: who sends little
# does not wait for those who send much.
_LITTLE: Final = 8 << 10
_TIMES_FULL: Final = 4


class PublishWindow:
    """The window of one link. ``clock`` is in seconds."""

    def __init__(self, link: Link, clock: Callable[[], float]) -> None:
        self._link = link
        self._clock = clock
        self._size = _FIRST
        # Bytes that the broker has not read as far as the gateway knows, and those of them behind the last marker.
        self._on_way = self._unmarked = 0
        self._channel: LinkChannel | None = None
        # Each gets its turn when there is room.
        self._waiting: deque[WindowUser] = deque()

    @property
    def channels(self) -> int:
        """How many channels of the link are the window's own."""
        return int(self._channel is not None and self._channel.closed is None)

    @property
    def _window(self) -> int:
        return self._size if len(self._link.users) > 1 else max(self._size, _ALONE)

    def published(self, user: WindowUser, size: int) -> None:
        """A session has written so many bytes of messages. HOT: once per batch."""
        self._on_way += size
        self._unmarked += size
        window = self._window
        is_full = self._on_way > window
        if is_full or self._unmarked > window >> 2:
            self._mark()
            if is_full and (size > _LITTLE or self._on_way > _TIMES_FULL * window) and self._on_way:
                self._waiting.append(user)
                user.window_full()

    def enter(self, user: WindowUser) -> None:
        """A session is about to write much: it waits if the window is full."""
        if self._on_way > self._window:
            # Or no answer may come: the window is smaller than it was if another session has joined.
            self._mark()
            if self._on_way:
                self._waiting.append(user)
                user.window_full()

    def leave(self, user: WindowUser) -> None:
        """A session publishes no longer."""
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
                # The link is lost, or has no room for another channel: it goes without a window.
                self._on_way -= size

    def _marked(self, size: int, sent_at: float, _answer: object) -> None:
        """The broker has answered a marker, or the link is lost."""
        self._on_way -= size
        waited = self._clock() - sent_at
        if waited > _SLOW:
            self._size = max(_LEAST, self._size * 3 >> 2)
        elif waited < _QUICK and self._waiting:
            self._size = min(_MOST, self._size * 5 >> 2)
        for _ in range(len(self._waiting)):
            if not self._waiting or self._on_way > self._window:
                break
            user = self._waiting.popleft()
            guarded(user, user.window_open)
