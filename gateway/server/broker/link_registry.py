"""The links that are open, and how many were opened and lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.server.broker.link import Link
    from gateway.server.stats import GatewayStats


class LinkRegistry:
    """All open links of a gateway, shared ones and others.

    Args:
        figures: count what is opened and lost.
        now: microseconds since the epoch.
    """

    def __init__(self, stats: GatewayStats, now: Callable[[], int]) -> None:
        self.links: set[Link] = set()
        self._figures = stats
        self._now = now

    def opened(self, link: Link) -> None:
        """A link is open."""
        link.opened_at = self._now()
        self._figures.host(self.label(link)).links_opened += 1
        if link.end is None:
            self.links.add(link)
            link.on_end = self._ended
        else:
            self._ended(link, lost=True)

    def label(self, link: Link) -> str:
        """What a link's virtual host counts as."""
        return self._figures.label(link.virtual_host)

    def _ended(self, link: Link, *, lost: bool) -> None:
        self.links.discard(link)
        if lost:
            self._figures.host(self.label(link)).links_lost += 1
