"""The link that a session has for itself: the one place where reading from the broker may pause for one client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.server.broker.channel import LinkChannel
    from gateway.server.broker.link import Link
    from gateway.server.broker.link_pool import LoginLinks


class PausableLink:
    """A session's own link, opened when a subscription first needs it, and read as fast as the client takes it.

    Args:
        client: names the client.
        session: the session's identity.
    """

    def __init__(self, client: str, session: str) -> None:
        # None until a subscription needs it.
        self.link: Link | None = None
        # Whether the client takes what comes. One that is gone takes everything: it is thrown away.
        self.client_writable = True
        self.client_gone = False
        self._client = client
        self._session = session

    async def opened(self, links: LoginLinks) -> Link:
        """The link, opened anew if it is not there. The answers to what is asked there now are read."""
        if self.link is None or self.link.end is not None:
            self.link = await links.open_pausable(self._client, self._session)
        self.link.resume_reading()
        return self.link

    def has(self, channel: LinkChannel) -> bool:
        """Whether a channel is on this link."""
        return channel.link is self.link

    def match(self, consuming: Iterable[LinkChannel]) -> None:
        """Read, or pause, as the client does.

        Args:
            consuming: the channels of the session's subscriptions. Where there are none, nothing comes in masses.
        """
        if self.link is None:
            return
        if self.client_writable or self.client_gone or not any(map(self.has, consuming)):
            self.link.resume_reading()
        else:
            self.link.pause_reading()

    def time_passed(self) -> None:
        """Called about once a second: the AMQP library must not take a paused link for dead."""
        if self.link is not None and not self.client_writable:
            self.link.show_life()

    async def update_secret(self, passcode: str) -> None:
        """Let the broker know of another passcode. A paused link answers when the client has caught up, or is gone."""
        if self.link is not None and self.link.end is None:
            await self.link.update_secret(passcode)

    async def close(self) -> None:
        """Close the link."""
        if self.link is not None:
            await self.link.close()
