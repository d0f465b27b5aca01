"""The file descriptors of one process: clients get those that links, journal and admin listener do not need."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Final

import structlog

from gateway.config.model import GatewayConfig
from gateway.server.log_limits import LogRateLimiter

log = structlog.get_logger("gateway.listening")

# Each client takes a descriptor. More than these are of no use to one process.
_MOST: Final = 1 << 20

# For the journal's next segment, name lookups and the files of a reload, beside what is open at the start. Of a small
# limit, only a share: one in this many.
_FILES: Final = 16
_FILES_SHARE: Final = 8

# For connections of the admin listener.
_ADMIN: Final = 64
_ADMIN_SHARE: Final = 16

# For links that are not open yet.
_LINKS: Final = 1024
_LINKS_SHARE: Final = 8

# A client whose links are dedicated has one to publish and one to consume.
_WITH_DEDICATED_LINKS: Final = 3

# Of a process that has not begun, or if the system cannot list them.
_OPEN_AT_START: Final = 32

_HOW_TO_RAISE: Final = "raise LimitNOFILE (systemd), ulimit -n (shell) or the container's ulimit nofile"


def raise_limit() -> None:
    """Use as many as the system permits. The soft limit is often 1,024, for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _most(hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def admin_connections() -> int:
    """The most connections of the admin listener."""
    return max(1, min(_ADMIN, _limit() // _ADMIN_SHARE))


def unreachable_limits(config: GatewayConfig, descriptors: Descriptors | None = None) -> Iterator[str]:
    """Warn of each `max_connections` that exceeds the file descriptors of a process.

    This is about ``descriptors``, or about a process that starts with the limit of this one.
    """
    if descriptors is None:
        raise_limit()
        descriptors = Descriptors(LogRateLimiter(lambda: 0.0))
        descriptors.use(config)
    clients = descriptors.most_clients * config.workers
    why = f"{descriptors.limit} file descriptors are enough for about {clients} clients; {_HOW_TO_RAISE}"
    for listener in config.listeners:
        if listener.max_connections is not None and listener.max_connections > clients:
            yield f"listener {listener.address}: max_connections {listener.max_connections} is out of reach: {why}"


class Descriptors:
    """Counts the clients and links of one process, and decides whether there is room for another."""

    def __init__(self, log_limiter: LogRateLimiter) -> None:
        self.clients = 0
        # Clients that may soon open a link, or two dedicated ones.
        self._logging_in = 0
        # Clients with dedicated links.
        self._dedicated = 0
        # Links that are open or being opened: shared ones, and those of one session.
        self._links = 0
        self._own_links = 0
        self._log_limiter = log_limiter
        # The most that a client may need.
        self._each = 1
        self._divide(_OPEN_AT_START)

    def begin(self, config: GatewayConfig) -> None:
        """Note that everything is open that stays open. No client has come yet."""
        others = _OPEN_AT_START
        with contextlib.suppress(OSError):
            # Without the one that is used for this list.
            others = len(os.listdir("/dev/fd")) - 1
        self._divide(others)
        self.use(config)
        log.info("file descriptors", limit=self.limit, clients=self.most_clients)

    def use(self, config: GatewayConfig) -> None:
        """Use another configuration."""
        dedicated = any(virtual_host.links == "dedicated" for virtual_host in config.resolved_virtual_hosts())
        self._each = _WITH_DEDICATED_LINKS if dedicated else 1

    def _divide(self, others: int) -> None:
        """Divide the file descriptors of the process, of which ``others`` are in use."""
        self.limit = _limit()
        self._spare_links = min(_LINKS, self.limit // _LINKS_SHARE)
        kept = min(_FILES, self.limit // _FILES_SHARE) + admin_connections()
        self._clients_and_links = max(1, self.limit - others - kept)

    @property
    def most_clients(self) -> int:
        """The most clients while few links are open; if links may be dedicated, while all of them are."""
        return max(1, (self._clients_and_links - self._spare_links) // self._each)

    def client_came(self, address: str) -> bool:
        """Count an accepted client, until it has gone. Returns False if it must be refused."""
        own_links = (self._logging_in + self._dedicated) * (self._each - 1)
        taken = self.clients + self._links + max(self._logging_in + self._own_links, own_links)
        if self.clients and taken + self._each > self._clients_and_links - self._spare_links:
            self._tell(address=address)
            return False
        self.clients += 1
        self._logging_in += 1
        return True

    def client_logged_in(self, *, dedicated: bool) -> None:
        """Note that a client has logged in, with dedicated links or without, or never will."""
        self._logging_in -= 1
        self._dedicated += dedicated

    def client_gone(self, *, dedicated: bool) -> None:
        """Note that a client has gone, after `client_logged_in`."""
        self.clients -= 1
        self._dedicated -= dedicated

    def link_begins(self, *, is_own: bool = False) -> bool:
        """Count a link until it is gone. Returns False if it must not be opened. ``is_own``: of one session."""
        if self.clients + self._links + self._own_links >= self._clients_and_links:
            self._tell()
            return False
        self._links += not is_own
        self._own_links += is_own
        return True

    def link_gone(self, *, is_own: bool = False) -> None:
        """Note that a link is closed, or was not opened."""
        self._links -= not is_own
        self._own_links -= is_own

    def _tell(self, **details: object) -> None:
        counts = {"limit": self.limit, "clients": self.clients, "links": self._links + self._own_links}
        self._log_limiter.warning("too few file descriptors", **details, **counts, hint=_HOW_TO_RAISE)


def _limit() -> int:
    """The present limit of this process (RLIMIT_NOFILE)."""
    return _most(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _most(limit: int) -> int:
    return _MOST if limit == resource.RLIM_INFINITY else min(limit, _MOST)
