"""The turn of one session after a loss that blames one of its login: who is to blame is found in a turn."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.server.broker.broker_errors import BROKER_FAULTS

# How long a session may keep its turn, in seconds. One that takes longer goes on without.
_LONGEST: Final = 2.0


class RecoveryTurn:
    """Taken before a session comes back, and given back when the broker has answered what the session sends again.

    A link that is closed in a turn makes its session suspect, and closed in a second one, to blame. Once is not enough:
    a session that has just connected takes no turns, and may do harm in the turn of another.
    """

    __slots__ = ("_ends", "_is_needed", "_is_suspect", "_lock")

    def __init__(self) -> None:
        # Whether the broker has blamed a session, perhaps this one.
        self._is_needed = False
        self._is_suspect = False
        # Held during the turn.
        self._lock: asyncio.Lock | None = None
        self._ends: asyncio.TimerHandle | None = None

    @property
    def is_taken(self) -> bool:
        """Whether the session has its turn."""
        return self._lock is not None

    def lost(self, code: int) -> None:
        """A link is lost."""
        self._is_needed |= code not in BROKER_FAULTS

    def is_to_blame(self, code: int) -> bool:
        """Whether a link that is lost now is lost because of what this session sends. It gives the turn back."""
        if not self.is_taken or code in BROKER_FAULTS:
            return False
        self.give_back()
        was_suspect, self._is_suspect = self._is_suspect, True
        return was_suspect

    async def take(self, lock: asyncio.Lock) -> None:
        """Wait for the turn, if there are turns now. ``lock`` is that of the login."""
        if self._is_needed and not self.is_taken:
            await lock.acquire()
            self._lock = lock
            self._ends = asyncio.get_running_loop().call_later(_LONGEST, self.give_back)

    def proven(self) -> None:
        """The broker has answered everything, or nothing for long, and did not close the link: no more turns."""
        self._is_needed = self._is_suspect = False
        self.give_back()

    def give_back(self) -> None:
        """It is the next one's turn."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
