"""A link that serves one session only: the one place where reading from the broker may pause for a client."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.broker.login_links import LoginLinks


class PausableLink:
    """Opened when a subscription first needs it, and read only as fast as the client takes its messages.

    ``consuming`` is a live view of the session's channels for subscriptions; some of them may be on this link.
    """

    def __init__(self, client: str, session: str, consuming: Iterable[LinkChannel]) -> None:
        self._link: Link | None = None
        self._client_writable = True
        self._client_gone = False
        self._client = client
        self._session = session
        self._consuming = consuming

    async def opened(self, links: LoginLinks) -> Link:
        """The link, opened anew if it is closed. Reading resumes, so that the broker's answers arrive."""
        if self._link is None or self._link.closed is not None or (self._link.is_draining and self._link.is_idle):
            self._link = await links.open_pausable(self._client, self._session)
        self._link.resume_reading()
        return self._link

    def has(self, channel: LinkChannel) -> bool:
        """Whether a channel is on this link."""
        return channel.link is self._link

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
        if self._link is None:
            return
        if self._client_writable or self._client_gone or not any(map(self.has, self._consuming)):
            self._link.resume_reading()
        else:
            self._link.pause_reading()

    def time_passed(self) -> None:
        """Called about once a second: the AMQP library must not take a paused link for dead."""
        if self._link is not None and not self._client_writable:
            self._link.feed_heartbeat()

    async def update_secret(self, passcode: str) -> None:
        """Send another passcode. On a paused link this takes until the client has caught up or is gone."""
        if self._link is not None and self._link.closed is None:
            await self._link.update_secret(passcode)

    async def close(self) -> None:
        """Close the link."""
        if self._link is not None:
            await self._link.close()
