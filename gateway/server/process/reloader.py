"""Reading the configuration again while the gateway runs: all of it counts, or none of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from gateway.config.loader import load
from gateway.config.model import GatewayConfig
from gateway.errors import ConfigError, GatewayError, Mistake
from gateway.server.process.audit import Audit
from gateway.server.process.logs import log_warnings
from gateway.server.process.reload import (
    TAKING_EFFECT,
    InUse,
    Reload,
    Reloadable,
    StoppingError,
    differences,
    listener_changes,
)
from gateway.server.process.systemd_notify import SystemdNotifier

if TYPE_CHECKING:
    from gateway.server.process.listeners import ListenerChanges

log = structlog.get_logger("gateway")


class Configurable(Protocol):
    """What is reloaded: a gateway, or the supervisor of several."""

    config: GatewayConfig
    is_stopping: bool
    audit: Audit

    async def apply(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """Use another configuration, as `Gateway.apply` does."""

    async def look_at_certificates(self) -> list[Path]:
        """Read certificates that have changed; their files."""

    def count_reload(self, *, successful: bool) -> None:
        """The configuration was read again."""


class Reloader:
    """Reads a gateway's configuration file again. One reload is carried out after the other."""

    def __init__(
        self, gateway: Configurable, file: str, services: Sequence[Reloadable], notifier: SystemdNotifier
    ) -> None:
        self._gateway = gateway
        self._file = file
        self._services = services
        self._notifier = notifier
        self._lock = asyncio.Lock()

    async def reload(self, asked_by: str) -> Reload:
        """Read the configuration and the certificates again, and use them.

        Raises:
            ConfigError: with every mistake; nothing has changed.
            StoppingError: the gateway is stopping.
        """
        async with self._lock:
            if self._gateway.is_stopping:
                raise StoppingError("the gateway is stopping")
            self._notifier.reloading()
            is_done = False
            try:
                result = await self._reload()
                is_done = True
            except ConfigError as error:
                mistakes = [str(mistake) for mistake in error.mistakes]
                log.error("reload refused", asked_by=asked_by, file=self._file, mistakes=mistakes)
                raise
            finally:
                self._gateway.count_reload(successful=is_done)
                self._notifier.reloaded()
        log.info(
            "configuration reloaded",
            asked_by=asked_by, file=self._file, changes=list(result.changes), needs_restart=list(result.restart),
        )  # fmt: skip
        log_warnings(self._gateway.config)
        return result

    async def _reload(self) -> Reload:
        before = self._gateway.config
        # In a thread, since a large file takes longer than clients should wait.
        config = await asyncio.to_thread(load, self._file)
        if self._gateway.is_stopping:
            raise StoppingError("the gateway is stopping")
        waiting = {
            key: getattr(before, key)
            for key in GatewayConfig.model_fields.keys() - TAKING_EFFECT
            if getattr(before, key) != getattr(config, key)
        }
        if waiting:
            config = config.model_copy(update=waiting)
        try:
            _held = [service.prepare(config) for service in self._services]
            listeners, restart = await self._gateway.apply(config)
        except ConfigError:
            raise
        except GatewayError as error:
            # It was found only when it was tried, and is a mistake like any other.
            raise ConfigError([Mistake("", _sentence(str(error)))], self._file) from error
        for service in self._services:
            restart |= await service.reload(config)
        restart |= {key: str(value) for key, value in waiting.items()}
        files = await self._gateway.look_at_certificates()
        changes = (
            *listener_changes(listeners),
            *differences(before, config),
            *(f"certificate {file}: read again" for file in files),
        )
        return Reload(changes, restart)

    async def reload_logged(self, signal_name: str) -> None:
        """The same for a signal: whoever sent it looks only at the log."""
        reason: str | None = None
        try:
            await self.reload(signal_name)
        except (ConfigError, StoppingError) as error:
            reason = str(error)
        except Exception as error:
            log.error("internal error", exc_info=error)
            reason = "a fault of the gateway"
        self._gateway.audit.write("reload", "failed" if reason else "done", signal=signal_name, reason=reason)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."
