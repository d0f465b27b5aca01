"""A link that serves one session only: the one place where reading from the broker may pause for a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.broker.login_links import LoginLinks


class PausableLink:
    """Opened when a subscription first needs it, and read only as fast as the client takes its messages.

    When it drains, another one is opened for further subscriptions; those that it has stay until they move.
    ``consuming`` is a live view of the session's channels for subscriptions; some of them may be on this link.
    """

    def __init__(self, client: str, session: str, consuming: Iterable[LinkChannel]) -> None:
        # Those before the last drain.
        self._links: list[Link] = []
        self._opening = asyncio.Lock()
        self._client_writable = True
        self._client_gone = False
        self._client = client
        self._session = session
        self._consuming = consuming

    async def opened(self, links: LoginLinks) -> Link:
        """The link, opened anew if it is closed or drains. Reading resumes, so that the broker's answers arrive."""
        async with self._opening:
            self._links = [link for link in self._links if link.closed is None]
            if not self._links or self._links[-1].is_draining:
                self._links.append(await links.open_pausable(self._client, self._session))
            link = self._links[-1]
        link.resume_reading()
        return link

    @property
    def is_open(self) -> bool:
        """Whether there was a need for one."""
        return bool(self._links)

    def has(self, channel: LinkChannel) -> bool:
        """Whether a channel is on this link."""
        return channel.link in self._links

    def set_client_writable(self, writable: bool) -> None:
        """Note whether the client takes its messages."""
        self._client_writable = writable
        self.read_or_pause()

    def set_client_gone(self) -> None:
        """The client is gone: its deliveries are dropped, so the link need not pause any more."""
        self._client_gone = True
        self.read_or_pause()

    def read_or_pause(self) -> None:
        """Pause if the client does not take its messages and one of its subscriptions is here; else read."""
        for link in self._links:
            is_used = any(channel.link is link for channel in self._consuming)
            if self._client_writable or self._client_gone or not is_used:
                link.resume_reading()
            else:
                link.pause_reading()

    def time_passed(self) -> None:
        """Called about once a second: the AMQP library must not take a paused link for dead."""
        if not self._client_writable:
            for link in self._links:
                link.feed_heartbeat()

    async def update_secret(self, passcode: str) -> None:
        """Send another passcode. On a paused link this takes until the client has caught up or is gone."""
        await asyncio.gather(*(link.update_secret(passcode) for link in self._links if link.closed is None))

    async def close(self) -> None:
        """Close the link."""
        await asyncio.gather(*(link.close() for link in self._links))
