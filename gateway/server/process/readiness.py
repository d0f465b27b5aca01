"""Whether clients can be served at this moment, and why not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.config import BrokerUrl, VirtualHost
    from gateway.server.broker.link_registry import LinkRegistry

# How long a good and a bad answer count, in seconds, and how long a broker may take for one.
_FRESH: Final = 5.0
_FRESH_FAILURE: Final = 1.0
_PATIENCE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer; ``reasons`` say what is missing, in sentences."""

    reasons: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.reasons


class ReadinessProbe:
    """Finds out whether a broker can be reached: an open link tells, and without one a TCP connection is tried.

    Args:
        virtual_hosts: all that are configured.
        inventory: of the open links.
        clock: seconds, only going forward.
    """

    def __init__(
        self, virtual_hosts: tuple[VirtualHost, ...], link_registry: LinkRegistry, clock: Callable[[], float]
    ) -> None:
        self._brokers: dict[BrokerUrl, float] = {}
        for virtual_host in virtual_hosts:
            upstream = virtual_host.upstream
            for url in upstream.urls:
                self._brokers[url] = max(self._brokers.get(url, 0.0), min(_PATIENCE, upstream.connect_timeout))
        self._inventory = link_registry
        self._clock = clock
        self._looking: asyncio.Task[tuple[str, ...]] | None = None
        self._seen: tuple[str, ...] = ()
        self._seen_at: float | None = None

    async def reasons(self) -> tuple[str, ...]:
        """Why no broker can be reached; empty if one can. What was found out counts for a few seconds."""
        if self._inventory.links:
            return ()
        fresh = _FRESH_FAILURE if self._seen else _FRESH
        if self._seen_at is None or self._clock() - self._seen_at > fresh:
            # Whoever asks meanwhile waits for the same answer.
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look(), name="admin readiness")
            return await asyncio.shield(self._looking)
        return self._seen

    async def _look(self) -> tuple[str, ...]:
        try:
            failures = await asyncio.gather(*(self._try(url, patience) for url, patience in self._brokers.items()))
            self._seen = () if None in failures else tuple(failure for failure in failures if failure is not None)
            self._seen_at = self._clock()
            return self._seen
        finally:
            self._looking = None

    @staticmethod
    async def _try(url: BrokerUrl, patience: float) -> str | None:
        """Open a TCP connection, and close it: why that is impossible, or None."""
        try:
            async with asyncio.timeout(patience):
                _, writer = await asyncio.open_connection(url.host, url.port)
        except TimeoutError:
            return f"{url}: no answer within {patience:g} seconds"
        except OSError as error:
            return f"{url}: {error.strerror or error}"
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return None

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
