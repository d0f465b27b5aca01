"""Whether clients can be served at this moment, and why not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.config.scalars import BrokerUrl
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.link_pool import LinkPool

# In seconds: how long a good and a bad result stay valid, and how long a broker may take to answer.
_KEEP_SUCCESS: Final = 5.0
_KEEP_FAILURE: Final = 1.0
_CONNECT_TIMEOUT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Why clients cannot be served, in words; no ``reasons`` if they can."""

    reasons: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether clients can be served."""
        return not self.reasons


class ReadinessProbe:
    """Checks that a broker can be reached: a link is open, or else a TCP connection succeeds."""

    def __init__(self, virtual_hosts: tuple[VirtualHost, ...], pool: LinkPool, clock: Callable[[], float]) -> None:
        # Each broker once, with its timeout in seconds.
        self._brokers: dict[BrokerUrl, float] = {}
        for virtual_host in virtual_hosts:
            upstream = virtual_host.upstream
            for url in upstream.urls:
                self._brokers[url] = max(self._brokers.get(url, 0.0), min(_CONNECT_TIMEOUT, upstream.connect_timeout))
        self._pool = pool
        self._clock = clock
        self._task: asyncio.Task[tuple[str, ...]] | None = None
        self._reasons: tuple[str, ...] = ()
        self._probed_at: float | None = None

    async def reasons(self) -> tuple[str, ...]:
        """Why no broker can be reached; empty if one can. A result stays valid for a few seconds."""
        if self._pool.links:
            return ()
        keep = _KEEP_FAILURE if self._reasons else _KEEP_SUCCESS
        if self._probed_at is None or self._clock() - self._probed_at > keep:
            # Requests that arrive meanwhile wait for the same result.
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._probe(), name="admin readiness")
            return await asyncio.shield(self._task)
        return self._reasons

    async def _probe(self) -> tuple[str, ...]:
        try:
            failures = await asyncio.gather(*(self._connect(url, seconds) for url, seconds in self._brokers.items()))
            self._reasons = () if None in failures else tuple(failure for failure in failures if failure is not None)
            self._probed_at = self._clock()
            return self._reasons
        finally:
            self._task = None

    @staticmethod
    async def _connect(url: BrokerUrl, seconds: float) -> str | None:
        """Open a TCP connection and close it; the error if it fails."""
        try:
            async with asyncio.timeout(seconds):
                _, writer = await asyncio.open_connection(url.host, url.port)
        except TimeoutError:
            return f"{url}: no answer within {seconds:g} seconds"
        except OSError as error:
            return f"{url}: {error.strerror or error}"
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return None

    async def close(self) -> None:
        """Cancel a probe that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
