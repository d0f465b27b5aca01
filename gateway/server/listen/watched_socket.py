"""A listening socket that the event loop watches all the time.

The event loop's ``sock_accept`` begins to watch the socket for each connection, and ends it: half of what accepting
costs.
"""

from __future__ import annotations

import asyncio
import socket


class WatchedSocket:
    """Accepts the connections of one listening socket, one in each round of the event loop."""

    __slots__ = ("_is_readable", "_is_watched", "_listening", "_loop")

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._is_readable = asyncio.Event()
        self._is_watched = False

    async def accept(self) -> tuple[socket.socket, object]:
        """The next connection, and its peer's name.

        Raises:
            OSError: it could not be accepted; the next one may be.
        """
        while True:
            if not self._is_watched:
                self._is_watched = True
                self._loop.add_reader(self._listening, self._readable)
            await self._is_readable.wait()
            self._is_readable.clear()
            try:
                connection, name = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                # The client is gone again.
                continue
            connection.setblocking(False)
            return connection, name

    def _readable(self) -> None:
        if self._is_readable.is_set():
            # Nobody accepts now. Otherwise the event loop would call this again and again.
            self.close()
        self._is_readable.set()

    def close(self) -> None:
        """Watch it no longer. The socket stays open."""
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._listening)
