"""A link that serves one session only: the one place where reading from the broker may pause for a client."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LoginLinks


class PausableLink:
    """Opened when a subscription first needs it, and read only as fast as the client takes its messages."""

    def __init__(self, client: str, session: str) -> None:
        # None until a subscription needs it.
        self.link: Link | None = None
        self.client_writable = True
        # Then deliveries are thrown away, and the link need not pause any more.
        self.client_gone = False
        self._client = client
        self._session = session

    async def opened(self, links: LoginLinks) -> Link:
        """The link, opened anew if it is closed. It is read now, for the answers to what is asked there."""
        if self.link is None or self.link.closed is not None:
            self.link = await links.open_pausable(self._client, self._session)
        self.link.resume_reading()
        return self.link

    def has(self, channel: LinkChannel) -> bool:
        """Whether a channel is on this link."""
        return channel.link is self.link

    def read_or_pause(self, consuming: Iterable[LinkChannel]) -> None:
        """Read, or pause because the client does not take its messages and one of its subscriptions is here."""
        if self.link is None:
            return
        if self.client_writable or self.client_gone or not any(map(self.has, consuming)):
            self.link.resume_reading()
        else:
            self.link.pause_reading()

    def time_passed(self) -> None:
        """Called about once a second: the AMQP library must not take a paused link for dead."""
        if self.link is not None and not self.client_writable:
            self.link.feed_heartbeat()

    async def update_secret(self, passcode: str) -> None:
        """Send another passcode. A paused link answers when the client has caught up, or is gone."""
        if self.link is not None and self.link.closed is None:
            await self.link.update_secret(passcode)

    async def close(self) -> None:
        """Close the link."""
        if self.link is not None:
            await self.link.close()
